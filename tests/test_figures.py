"""The pictures say what is true: labels, shapes, counts, colours, formats and refusals."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib
import pytest
import torch
from matplotlib import font_manager
from torch import nn

from mlpkit import figures
from mlpkit.activations import ActivationOptionError
from mlpkit.build import BuildError, build_ffn
from mlpkit.cli import main
from mlpkit.cli.plot import component, default_path
from mlpkit.figures import PictureError, plot_activation, plot_ffn, plot_loss, save_figure
from mlpkit.figures.canvas import DARK, LIGHT, svg_text
from mlpkit.figures.captions import active_parameters, caption
from mlpkit.figures.dataflow import trace
from mlpkit.figures.fonts import CHINESE_FONTS, FontError, chinese_font
from mlpkit.figures.labels import CHINESE, ENGLISH
from mlpkit.figures.mixtures import diagram
from mlpkit.figures.placement import place, spread
from mlpkit.plugins import registries
from mlpkit.registry import UnknownNameError

ACTIVATIONS = registries().activation.names()
FFNS = registries().ffn.names()


def texts(figure):
    """Every text of the figure's SVG, read as XML."""
    root = ET.fromstring(svg_text(figure))
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]


@pytest.fixture
def chinese():
    """Skips where no font has Chinese; the fallback's message is tested everywhere."""
    try:
        return chinese_font()
    except FontError:
        pytest.skip("no Chinese font is installed")


def test_the_labels_of_activations_are_text_in_the_svg():
    shown = texts(plot_activation("relu", "gelu", "silu"))
    assert {"relu", "gelu", "silu", "Activation f(x)", "Derivative f′(x)"} <= set(shown)
    assert "min −0.16997 at x = −0.75179; zero at x = 0" in shown
    assert "min −0.27846 at x = −1.2785; zero at x = 0" in shown
    assert "min 0 at x ≤ 0; zero at x ≤ 0" in shown
    assert "f(x) = x·σ(x)" in shown


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_registered_activation_plots(name):
    figure = plot_activation(name)
    left, right = figure.axes
    for axes in (left, right):
        values = torch.as_tensor(axes.lines[0].get_ydata())
        assert len(values) == 4801
        assert int(values.isnan().sum()) <= 4  # nothing but a gap at each jump
    assert name in [t.get_text() for t in figure.texts]


def test_the_curve_is_the_function_and_the_right_one_its_derivative():
    left, right = plot_activation("silu").axes
    x = torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64)
    sigmoid = 1 / (1 + (-x).exp())
    for axes, wanted in ((left, x * sigmoid), (right, sigmoid * (1 + x * (1 - sigmoid)))):
        xs, ys = (torch.as_tensor(values) for values in axes.lines[0].get_data())
        at = (xs[:, None] - x).abs().argmin(0)
        assert torch.allclose(ys[at], wanted, atol=1e-12)


def test_the_derivative_of_relu_has_a_gap_at_its_jump():
    _, right = plot_activation("relu").axes
    values = torch.as_tensor(right.lines[0].get_ydata())
    assert int(values.isnan().sum()) == 1
    assert set(values[~values.isnan()].tolist()) == {0.0, 1.0}


def test_options_of_an_activation_change_its_curve_and_its_label():
    figure = plot_activation({"name": "leaky_relu", "negative_slope": 0.2}, span=(-5, 5))
    assert figure.axes[0].lines[0].get_ydata()[0] == pytest.approx(-1.0)
    assert figure.axes[0].get_xlim() == (-5, 5)
    assert "leaky_relu (negative_slope=0.2)" in texts(figure)


def test_several_elements_and_learned_parameters_are_noted():
    shown = texts(plot_activation("solu", "swish_learned"))
    assert "one of 64 elements, the others at quantiles of N(0, 1)" in shown
    assert "learned, at the initial value: beta" in shown


def test_a_curve_that_dwarfs_the_others_leaves_through_the_frame():
    left, _ = plot_activation("relu", "relu2", "gelu").axes
    assert left.get_ylim()[1] == 12  # twice 6; ReLU² reaches 36
    assert plot_activation("relu2").axes[0].get_ylim()[1] > 36


@pytest.mark.parametrize("name", FFNS)
def test_every_registered_ffn_plots_and_shows_each_linear_with_its_shape(name):
    module = build_ffn(name, hidden_size=16)
    shown = [t.get_text() for t in plot_ffn(name, hidden_size=16).findobj(matplotlib.text.Text)]
    assert "output y (…, 16)" in shown
    for linear in (m for m in module.modules() if isinstance(m, nn.Linear)):
        assert f"{linear.in_features} → {linear.out_features}" in shown


def test_a_gated_ffn_is_two_branches_and_a_product():
    module = build_ffn("swiglu", hidden_size=8, intermediate_size=12, bias=True, dropout=0.1)
    nodes = {n.name: n for n in trace(module, 8, ENGLISH).nodes}
    assert nodes["gate_proj"].details == ("8 → 12 + b",)
    (product,) = (n for n in nodes.values() if n.title == "×")
    gate, up = product.sources
    assert up == "up_proj"
    assert nodes[gate].title == "silu"
    assert nodes[gate].sources == ("gate_proj",)
    assert nodes["down_proj"].sources == (product.name,)
    assert nodes["dropout"].details == ("Dropout p = 0.1",)
    assert nodes["dropout"].sources == ("down_proj",)


def test_dropout_of_nothing_is_not_drawn():
    names = [n.name for n in trace(build_ffn("naive", hidden_size=8), 8, ENGLISH).nodes]
    assert names[0] == "x"
    assert "dropout" not in names


class Packed(nn.Module):
    """Gate and up in one matrix, with a scale and a parameter."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Linear(8, 24)
        self.scale = nn.Parameter(torch.ones(12))
        self.down_proj = nn.Linear(12, 8)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(torch.sigmoid(gate) * up * self.scale) * 0.5


def test_a_strangers_forward_is_traced_with_its_operations_and_parameters():
    nodes = {n.name: n for n in trace(Packed(), 8, ENGLISH).nodes}
    assert nodes["chunk"].sources == ("gate_up_proj",)
    assert nodes["sigmoid"].kind == "activation"
    assert nodes["mul"].sources == ("sigmoid", "chunk")
    assert nodes["scale"].details == ("12",)
    assert [n.title for n in nodes.values()][-2:] == ["× 0.5", "output y"]


class Branching(Packed):
    """What it does depends on values, which no trace can follow."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


def test_what_cannot_be_traced_is_drawn_as_its_parts_without_arrows_between():
    source, card, end = diagram(Branching(), 8, ENGLISH).nodes
    assert (source.title, end.title) == ("input x (…, 8)", "output y (…, 8)")
    assert not card.inner.traced
    parts = [(n.title, n.details) for n in card.inner.nodes]
    assert parts == [
        ("scale", ("12",)),
        ("gate_up_proj", ("8 → 24 + b",)),
        ("down_proj", ("12 → 8 + b",)),
    ]
    assert not any(n.sources for n in card.inner.nodes)


def test_tracing_leaves_the_module_as_it_was():
    module = Packed()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    trace(module, 8, ENGLISH)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert module.training


MOE = {
    "name": "moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "expert": {"name": "naive", "intermediate_size": 12},
}


def test_a_moe_has_router_experts_and_a_weighted_sum():
    nodes = {n.name: n for n in diagram(build_ffn(MOE, hidden_size=8), 8, ENGLISH).nodes}
    assert nodes["router"].details == ("TopKRouter", "8 → 4", "softmax")
    assert nodes["choice"].title == "2 of 4 experts"
    experts = nodes["experts0"]
    assert (experts.title, experts.copies) == ("4 experts", 4)
    assert "8 → 12" in [d for n in experts.inner.nodes for d in n.details]
    assert nodes["sum"].sources == ("choice", "experts0")
    assert nodes["y"].sources == ("sum",)


def test_a_moe_shows_shared_latent_gate_groups_and_where_weights_multiply():
    module = build_ffn(
        {
            **MOE,
            "expert": [{"name": "naive", "num_experts": 3}, {"name": "copy", "num_experts": 1}],
            "latent_size": 6,
            "shared": "swiglu",
            "shared_combine": "gated",
            "capacity_factor": 1.25,
            "router": {"name": "topk", "score": "sigmoid", "apply_on": "input"},
        },
        hidden_size=8,
    )
    nodes = {n.name: n for n in diagram(module, 8, ENGLISH).nodes}
    assert nodes["weigh"].sources == ("choice", "latent_down_proj")
    assert nodes["sum"].sources == ("experts0", "experts1")
    assert nodes["experts0"].title == "3 experts; capacity ×1.25"
    assert nodes["latent_up_proj"].details == ("6 → 8",)
    assert nodes["gated"].sources == ("shared", "gate")
    assert nodes["total"].sources == ("latent_up_proj", "gated")
    assert nodes["router"].details[-1] == "sigmoid"


def test_experts_that_choose_are_said_to():
    module = build_ffn({**MOE, "router": "expert_choice"}, hidden_size=8)
    choice = diagram(module, 8, ENGLISH).nodes[2]
    assert (choice.title, choice.details) == ("experts choose tokens", ("2 per token on average",))


def test_a_preset_is_drawn_by_its_name_however_many_experts_it_has():
    shown = texts(plot_ffn("deepseek_v3", {"name": "mixtral", "num_experts": 4}))
    assert "deepseek_v3: moe[256×swiglu, top 8, shared swiglu]" in shown
    assert {"8 of 256 experts", "4 of 8 groups first", "sigmoid"} <= set(shown)
    assert "mixtral: moe[4×swiglu, top 2]" in shown


def test_the_parameters_of_a_moe_are_counted_whole_and_active():
    module = build_ffn(MOE, hidden_size=8)
    assert active_parameters(module) == 2 * (2 * 8 * 12) + 4 * 8
    lines = caption(MOE, module, ENGLISH)
    assert lines[1:] == ("800 parameters", "416 active per token")  # 4·192 + 32
    assert active_parameters(build_ffn("naive", hidden_size=8)) is None


@pytest.mark.parametrize("name", FFNS)
def test_no_two_boxes_of_a_diagram_overlap(name):
    plan = place(diagram(build_ffn(name, hidden_size=16), 16, ENGLISH))
    spots = list(plan.spots.values())
    for index, a in enumerate(spots):
        assert a.x - a.width / 2 >= -1e-9
        assert a.x + a.width / 2 <= plan.width + 1e-9
        for b in spots[index + 1 :]:
            apart_x = abs(a.x - b.x) >= (a.width + b.width) / 2 - 1e-9
            apart_y = a.top <= b.y + 1e-9 or b.top <= a.y + 1e-9
            assert apart_x or apart_y


def test_positions_are_the_nearest_that_keep_their_gaps():
    assert spread([0.0, 0.0], [2.0]) == [-1.0, 1.0]
    assert spread([0.0, 5.0], [2.0]) == [0.0, 5.0]
    assert spread([1.0, 0.0, 10.0], [1.0, 1.0]) == [0.0, 1.0, 10.0]


@pytest.mark.parametrize(("dark", "colours"), [(False, LIGHT), (True, DARK)])
def test_the_background_is_light_or_dark(dark, colours):
    for figure in (plot_activation("relu", dark=dark), plot_ffn("naive", dark=dark)):
        assert matplotlib.colors.to_hex(figure.get_facecolor()) == colours.background
        assert f"fill: {colours.background}" in svg_text(figure)


def luminance(colour):
    """Relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_curves_stand_out_from_what_is_behind(colours):
    assert contrast(colours.faint, colours.background) >= 4.5
    assert contrast(colours.faint, colours.card) >= 4.5
    assert all(contrast(colours.ink, fill) >= 7 for fill, _ in colours.boxes.values())
    assert all(contrast(colour, colours.background) >= 2.2 for colour in colours.series)


def test_chinese_labels_have_a_chinese_font(chinese):
    figure = plot_activation("silu", lang="zh")
    text = svg_text(figure)
    assert "激活函数 f(x)" in text
    assert "极小值 −0.27846（x = −1.2785）；零点 x = 0" in text
    assert f"'{chinese}'" in text
    assert "'Microsoft YaHei'" in text  # for a viewer elsewhere
    assert "共享专家" in svg_text(plot_ffn({**MOE, "shared": "naive"}, lang="zh"))


def test_chinese_in_pixels_makes_no_warning(chinese, tmp_path, caplog):
    save_figure(plot_activation("relu", lang="zh"), tmp_path / "a.png")
    assert not caplog.records


def test_without_a_chinese_font_it_says_what_to_install(monkeypatch):
    kept = [f for f in font_manager.fontManager.ttflist if f.name not in CHINESE_FONTS]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", kept)
    monkeypatch.setattr("mlpkit.figures.fonts._new_files", lambda: ())
    with pytest.raises(FontError, match="apt-get install fonts-noto-cjk"):
        plot_activation("relu", lang="zh")
    plot_activation("relu")


def test_a_font_that_came_after_matplotlibs_list_was_made_is_found(chinese, monkeypatch):
    kept = [f for f in font_manager.fontManager.ttflist if f.name not in CHINESE_FONTS]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", kept)
    assert chinese_font() in CHINESE_FONTS


def test_both_languages_have_the_same_blanks():
    for field, english in vars(ENGLISH).items():
        blanks = sorted(re.findall(r"{\w+}", english))
        assert sorted(re.findall(r"{\w+}", vars(CHINESE)[field])) == blanks


@pytest.mark.parametrize(
    ("ending", "start"),
    [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("SVG", b"<?xml")],
)
def test_the_ending_decides_the_format_and_the_bytes_repeat(ending, start, tmp_path):
    path = tmp_path / f"a.{ending}"
    written = []
    for _ in range(2):
        save_figure(plot_ffn("naive", hidden_size=8), path)
        written.append(path.read_bytes())
    assert written[0].startswith(start)
    assert written[0] == written[1]


def test_drawing_leaves_matplotlibs_settings_and_loads_no_pyplot(tmp_path):
    code = (
        "import sys, matplotlib\n"
        "from mlpkit.figures import plot_activation, save_figure\n"
        # Asking for the backend would load pyplot.
        "settings = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams"
        " if k != 'backend'}\n"
        "before = settings()\n"
        "save_figure(plot_activation('relu'), sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert before == settings()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, tmp_path / "a.svg"], check=True)


def test_a_figure_shows_itself_in_a_notebook():
    assert plot_activation("relu")._repr_svg_().startswith("<?xml")


@pytest.mark.parametrize("name", ["a.jpg", "picture"])
def test_an_ending_that_is_no_format_is_refused(name, tmp_path):
    with pytest.raises(PictureError, match=re.escape(".svg, .png, .pdf")):
        save_figure(plot_activation("relu"), tmp_path / name)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(PictureError, match="No such file or directory"):
        save_figure(plot_activation("relu"), tmp_path / "missing" / "a.svg")


def test_unknown_names_and_options_are_told_with_the_nearest():
    with pytest.raises(UnknownNameError, match="'silu'"):
        plot_activation("sillu")
    with pytest.raises(UnknownNameError, match="'swiglu'"):
        plot_ffn("swiglo")
    with pytest.raises(ActivationOptionError, match="negative_slope"):
        plot_activation({"name": "leaky_relu", "slope": 1})
    with pytest.raises(BuildError, match="intermediate_size"):
        plot_ffn({"name": "naive", "intermediate": 1})
    with pytest.raises(figures.LanguageError, match="'de'"):
        plot_ffn("naive", lang="de")


@pytest.mark.parametrize("span", [(1, 1), (2, -2), (0, float("inf")), (float("nan"), 1)])
def test_a_range_without_an_inside_is_refused(span):
    with pytest.raises(figures.RangeError, match="smaller first"):
        plot_activation("relu", span=span)


def test_without_matplotlib_the_message_names_the_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(figures.MissingExtraError, match=re.escape("pip install 'mlpkit[report]'")):
        plot_ffn("naive")
    assert main(["plot", "ffn", "naive", "-o", str(tmp_path / "a.svg")]) == 2
    assert "mlpkit[report]" in capsys.readouterr().err
    (tmp_path / "m.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert "mlpkit[report]" in figures.save_loss_curve(tmp_path / "m.jsonl", tmp_path / "l.svg")


def test_the_loss_curve_has_both_losses_at_their_steps():
    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "val_loss": 2.5}]
    (axes,) = plot_loss(lines, dark=True).axes
    training, validation = axes.lines
    assert training.get_xydata().tolist() == [[1, 3], [2, 2]]
    assert validation.get_xydata().tolist() == [[2, 2.5]]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["training", "validation"]
    assert not plot_loss([]).axes[0].lines


def test_a_runs_loss_curve_is_written(tmp_path):
    metrics, out = tmp_path / "metrics.jsonl", tmp_path / "loss.svg"
    metrics.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert figures.save_loss_curve(metrics, out) == ""
    assert "loss (nats per token)" in out.read_text()


def test_the_command_writes_the_picture_it_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "plot activation leaky_relu:negative_slope=0.2 silu --range -4 4 --dark"
    assert main(line.split()) == 0
    assert capsys.readouterr().out == "wrote activation-leaky_relu-silu.svg\n"
    text = (tmp_path / "activation-leaky_relu-silu.svg").read_text()
    assert "leaky_relu (negative_slope=0.2)" in text
    moe = "moe:num_experts=4,expert.name=naive,expert.intermediate_size=12"
    assert main(["plot", "ffn", moe, "--hidden-size", "8", "-o", "a.pdf"]) == 0
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("activation sillu", "did you mean 'silu'"),
        ("activation relu -o a.jpg", ".svg, .png, .pdf"),
        ("activation relu -o none/a.svg", "No such file or directory"),
        ("activation relu:slope", "NAME:KEY=VALUE"),
        ("activation relu --hidden-size 8", "--hidden-size has no meaning"),
        ("ffn naive --range 0 1", "--range has no meaning"),
        ("ffn naive:width=3", "no option 'width'"),
    ],
)
def test_what_the_command_refuses_ends_with_code_2(line, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *line.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_options_on_the_command_line_are_yaml_and_may_nest():
    assert component("relu") == "relu"
    assert component("moe:expert.name=gated,num_experts=4,shared={name: naive, bias: true}") == {
        "name": "moe",
        "expert": {"name": "gated"},
        "num_experts": 4,
        "shared": {"name": "naive", "bias": True},
    }


def test_the_default_name_stays_a_file_name():
    assert str(default_path("ffn", ["moe:num_experts=4", "naive"])) == "ffn-moe-naive.svg"
    assert (
        str(default_path("activation", ACTIVATIONS)) == f"activation-{len(ACTIVATIONS)}-names.svg"
    )
