"""The trainer of LiBai: lazy configs, four hook points, iterations."""

from stoker.dialects.aliases import arrange

_MODULES = {
    "config": "config.arguments config.config config.instantiate config.lazy",
    "data": "data.build data.samplers data.samplers.samplers data.structures",
    "default": "engine.default utils.logger",
    "hooks": "engine.hooks utils.checkpoint",
    "trainer": "engine.trainer",
    "evaluation": """evaluation.bleu_evaluator evaluation.cls_evaluator evaluation.evaluator
        evaluation.ppl_evaluator evaluation.reg_evaluator evaluation.utils""",
    "models": """models.build models.utils models.utils.graph_base tokenizer tokenizer.build
        optim optim.build""",
    "scheduler": "scheduler.build scheduler.lr_scheduler",
    "distributed": "utils.distributed",
    "events": "utils.events utils.history_buffer",
    "file_io": "utils.file_io",
}
"""For each module of the dialect those of LiBai whose names it has."""

_PACKAGES = {"engine": "default trainer", "utils": ""}
_SAME = {old: home for home, names in _MODULES.items() for old in names.split()}
arrange(__name__, {**_PACKAGES, **_SAME})
