from tidemill_rollout.engine.sizing import kv_bytes, kv_bytes_per_token

SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}


def test_a_token_has_a_key_and_a_value_in_every_layer() -> None:
    assert kv_bytes_per_token(SMOLLM2, "float32") == 2 * 30 * 3 * 64 * 4
    assert kv_bytes_per_token(SMOLLM2, "bfloat16") == 2 * 30 * 3 * 64 * 2


def test_the_head_dimension_may_be_given_and_key_heads_may_be_left_out() -> None:
    assert kv_bytes_per_token({"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "head_dim": 16}, "float32") == 2 * 2 * 16 * 4


def test_the_cache_holds_every_execution_at_full_length_in_whole_blocks_and_one_more() -> None:
    assert kv_bytes(SMOLLM2, "float32", executions=3, max_length=33) == (3 * 2 + 1) * 32 * kv_bytes_per_token(SMOLLM2, "float32")
