"""From plain data to Grafana's JSON, through the SDK's builders."""

from __future__ import annotations

import json
from collections.abc import Iterator

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as boards
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from helm.dashboards.panel import Board, Panel, Shape

TAG = "tidemill"
SOURCE = boards.DataSourceRef(type_val="prometheus", uid="$datasource")
EVERYTHING = ".*"  # what a label can be that the scrape does not set
LABELS = {"cluster": "Cluster", "namespace": "Namespace", "job": "Job", "cell": "Cell"}

type Builder = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel


def as_json(board: Board) -> str:
    return json.dumps(built(board), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def built(board: Board) -> boards.Dashboard:
    made = (
        dashboard.Dashboard(f"Tidemill / {board.title}")
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(boards.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Tidemill")
            .type(boards.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for position, label in enumerate(board.variables):
        made = made.with_variable(_variable(board, label, board.variables[:position]))
    for annotation in _annotations(board):
        made = made.annotation(annotation)
    number = 0
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            number += 1
            made = made.with_panel(_panel(board, panel).id(number))
    return made.build()


def _variable(board: Board, label: str, wider: tuple[str, ...]) -> dashboard.QueryVariable:
    chosen = ", ".join(f'{name}=~"${name}"' for name in wider)
    many = label in board.many
    made = (
        dashboard.QueryVariable(label)
        .label(LABELS[label])
        .datasource(SOURCE)
        .query(f"label_values({board.source}{{{chosen}}}, {label})")
        .refresh(boards.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(boards.VariableSort.ALPHABETICAL_ASC)
    )
    return made.multi(True).include_all(True).all_value(EVERYTHING) if many else made


def _annotations(board: Board) -> Iterator[dashboard.AnnotationQuery]:
    if not board.annotated:
        return
    where = ", ".join(f'{name}=~"${name}"' for name in board.variables if name != "cell")
    for name, expr, color in (
        ("Flips", f"sum by (cell) (changes(tidemill_cell_granted_epoch{{{where}}}[1m])) > 0", "purple"),
        ("Publications", f"sum by (job) (changes(tidemill_policy_version{{{where}}}[1m])) > 0", "blue"),
    ):
        yield dashboard.AnnotationQuery().name(name).datasource(SOURCE).expr(expr).icon_color(color).enable(True)


def _panel(board: Board, panel: Panel) -> Builder:
    made = _shaped(panel).title(panel.title).description(panel.description).datasource(SOURCE).unit(panel.unit)
    made = made.span(panel.width).height(panel.height)
    for query, ref in zip(panel.queries, "ABCDEFGHIJ", strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(ref)
        if panel.shape is Shape.TABLE:
            target = target.instant().format(PromQueryFormat.TABLE)
        elif query.legend:
            target = target.legend_format(query.legend)
        made = made.with_target(target)
    if panel.minimum is not None:
        made = made.min(panel.minimum)
    if panel.maximum is not None:
        made = made.max(panel.maximum)
    if panel.thresholds:
        steps = [boards.Threshold(value=None, color="green"), *(boards.Threshold(value=value, color=color) for value, color in panel.thresholds)]
        made = made.thresholds(dashboard.ThresholdsConfig().mode(boards.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.states:
        options = {str(state.value): boards.ValueMappingResult(text=state.text, color=state.color) for state in panel.states}
        mappings: list[boards.ValueMapping] = [boards.ValueMap(options=options)]
        if panel.shape is Shape.TABLE:  # of its first column: a 2 in another is a 2
            made = made.override_by_name(panel.queries[0].legend, [boards.DynamicConfigValue(id_val="mappings", value=mappings)])
        else:
            made = made.mappings(mappings)
    if panel.link:
        made = made.data_links([dashboard.DashboardLink("Look at this one").url(_url(board, panel))])
    return made


def _url(board: Board, panel: Panel) -> str:
    """Tables hand on a row's fields, the others a series' labels, and both what is chosen on the board."""
    named = "__data.fields" if panel.shape is Shape.TABLE else "__field.labels"
    pointed_at = [f"var-{name}=${{{named}.{name}}}" for name in panel.variables]
    chosen = [f"${{{name}:queryparam}}" for name in board.variables if name not in panel.variables]
    return f"/d/{panel.link}?{'&'.join([*pointed_at, *chosen])}&var-datasource=$datasource&$__url_time_range"


def _shaped(panel: Panel) -> Builder:
    legend = common.VizLegendOptions().display_mode(models.LegendDisplayMode.LIST).placement(models.LegendPlacement.BOTTOM).show_legend(True)
    match panel.shape:
        case Shape.STAT:
            newest = common.ReduceDataOptions().calcs(["lastNotNull"])
            color = models.BigValueColorMode.BACKGROUND if panel.thresholds or panel.states else models.BigValueColorMode.VALUE
            return stat.Panel().color_mode(color).reduce_options(newest)
        case Shape.TIMELINE:
            return statetimeline.Panel().merge_values(True).show_value(models.VisibilityMode.NEVER).row_height(0.8).line_width(0).legend(legend)
        case Shape.TABLE:
            return _merged(table.Panel(), panel)
        case Shape.LINES | Shape.STACKED:
            lines = timeseries.Panel().legend(legend).show_points(models.VisibilityMode.NEVER).span_nulls(False)
            if panel.thresholds:
                lines = lines.thresholds_style(common.GraphThresholdsStyleConfig().mode(models.GraphTresholdsStyleMode.LINE))
            if panel.shape is Shape.STACKED:
                lines = lines.fill_opacity(60).line_width(0).stacking(common.StackingConfig().mode(models.StackingMode.NORMAL).group("A"))
            return lines


def _merged(made: table.Panel, panel: Panel) -> table.Panel:
    """One row for each set of labels, one column for each query, called as its legend says."""
    columns = {f"Value #{ref}": query.legend for query, ref in zip(panel.queries, "ABCDEFGHIJ", strict=False)}
    if len(panel.queries) == 1:
        columns = {"Value": panel.queries[0].legend}
    organize = {"excludeByName": {"Time": True}, "renameByName": columns}
    return made.with_transformation(boards.DataTransformerConfig(id_val="merge", options={})).with_transformation(
        boards.DataTransformerConfig(id_val="organize", options=organize)
    )
