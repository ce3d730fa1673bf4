"""Who may change role and when: pure functions of plain data. The operator, the conductor and the simulator all call these."""
