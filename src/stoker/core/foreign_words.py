"""The words of other trainers for names of ours, one table of arguments for each of them.

The right-hand side is the call that takes it here: "fit(epochs=…)" stands for the argument
``epochs`` of ``trainer.fit``. A word with several meanings lists several calls, the most likely
first; the one that the user called is preferred.
"""

import re
from collections.abc import Iterable
from typing import Any

from stoker.core.errors import did_you_mean
from stoker.core.foreign_names import CLASSES

LIGHTNING = {
    "max_epochs": "fit(epochs=…)",
    "max_steps": "fit(max_steps=…)",
    "max_time": "hooks.TimeLimit(minutes=…)",
    "callbacks": "Trainer(hooks=…)",
    "plugins": "Trainer(hooks=…)",
    "logger": "hooks.Write(events.TensorBoard())",
    "loggers": "hooks.Write(events.TensorBoard())",
    "accelerator": "Engine(device=…)",
    "devices": "launch.run(nproc=…)",
    "num_nodes": "Engine(layout=Layout(replicate=-1)) under torchrun",
    "strategy": "Engine(layout=Layout(…))",
    "sync_batchnorm": "Engine(…, layout=Layout(replicate=-1, sync_batchnorm=True))",
    "precision": "Engine(precision=…)",
    "gradient_clip_val": "Engine(clip_norm=…)",
    "gradient_clip_algorithm": "Engine(clip_norm=…) or Engine(clip_value=…)",
    "accumulate_grad_batches": "Trainer(accumulate=…)",
    "val_check_interval": "fit(validate_every=…)",
    "check_val_every_n_epoch": "fit(validate_every='…ep')",
    "log_every_n_steps": "hooks.default(log_every=…)",
    "enable_progress_bar": "hooks.default(progress=…)",
    "enable_checkpointing": "Trainer(run_dir=…) to save, no run_dir to save nothing",
    "default_root_dir": "Trainer(run_dir=…)",
    "deterministic": "Trainer(seed=…) and torch.use_deterministic_algorithms(True)",
    "benchmark": "torch.backends.cudnn.benchmark",
    "inference_mode": "evaluate() and predict(), which never compute gradients",
    "overfit_batches": "fit(overfit_batches=…)",
    "limit_train_batches": "fit(limit_train_batches=…)",
    "limit_val_batches": "fit(limit_val_batches=…) evaluate(limit_batches=…)",
    "limit_test_batches": "evaluate(limit_batches=…)",
    "fast_dev_run": "fit(fast_dev_run=…)",
    "num_sanity_val_steps": "fit(fast_dev_run=True) before the fit",
    "detect_anomaly": "hooks.NaNGuard() or torch.autograd.set_detect_anomaly(True)",
    "profiler": "hooks.Profiler()",
    "model": "Trainer(Engine(model, optimizer, criterion))",
    "train_dataloaders": "fit(train_loader=…)",
    "train_dataloader": "fit(train_loader=…)",
    "val_dataloaders": "fit(val_loader=…)",
    "val_dataloader": "fit(val_loader=…)",
    "dataloaders": "evaluate(loader=…) predict(data=…)",
    "datamodule": "fit(train_loader=…)",
    "ckpt_path": "fit(resume=…) load(path=…)",
    "monitor": "Checkpoint(best=…)",
    "save_top_k": "Checkpoint(best_count=…)",
    "save_last": "Checkpoint(keep=…)",
    "dirpath": "Checkpoint(folder=…) JsonLines(path=…)",
    "every_n_train_steps": "Checkpoint(every='…st')",
    "every_n_epochs": "Checkpoint(every='…ep')",
    "train_time_interval": "Checkpoint(every='…min')",
    "save_weights_only": "hooks.SaveWeights(every=…)",
    "save_on_exception": "Checkpoint(every=…), which resumes after any failure",
    "filename": "SaveWeights(path='…{epoch}…')",
    "swa_lrs": "Engine(lr_scheduler=torch.optim.swa_utils.SWALR(optimizer, …))",
    "swa_epoch_start": "SWA(start_epoch=…)",
    "scheduling": "AccumulationSchedule(batches=…)",
    "duration": "TimeLimit(minutes=…)",
    "stopping_threshold": "EarlyStopping(baseline=…)",
    "refresh_rate": "Progress(refresh=…)",
    "logging_interval": "hooks.LR()",
    "weights_only": "load_weights(path=…), which never runs code",
    "save_dir": "Trainer(run_dir=…) TensorBoard(path=…) JsonLines(path=…)",
    "min_epochs": "EarlyStopping(patience=…), which waits at least that long",
    "limit_predict_batches": "predict(data=…) with fewer batches",
    "return_predictions": "predict(), which always returns the outputs",
    "enable_model_summary": "print(stoker.nn.summary(model))",
    "enable_autolog_hparams": "Trainer(params={…})",
    "use_distributed_sampler": "data.unsharded(loader)",
    "barebones": "Trainer(hooks=[])",
    "reload_dataloaders_every_n_epochs": "a loader that makes its data in __iter__",
    "save_on_train_epoch_end": "Checkpoint(every='1ep')",
    "check_on_train_epoch_end": "EarlyStopping('train/loss')",
    "auto_insert_metric_name": "SaveWeights(path='…{epoch}…')",
    "divergence_threshold": "hooks.NaNGuard(), or run.stop(…) in a hook",
    "annealing_epochs": "Engine(lr_scheduler=torch.optim.swa_utils.SWALR(optimizer, …))",
    "annealing_strategy": "Engine(lr_scheduler=torch.optim.swa_utils.SWALR(optimizer, …))",
    "update_every_n_steps": "EMA(), which averages at every step",
    "unfreeze_backbone_at_epoch": "FreezeLayers(until_epoch=…)",
    "backbone_initial_ratio_lr": "nn.parameter_groups(model, …), with an 'lr_ratio' for a pattern",
    "cpu_offload": "Layout(offload=…)",
    "auto_wrap_policy": "Layout(blocks='…')",
    "sharding_strategy": "Layout(shard=-1)",
    "device_mesh": "Layout(replicate=…, tensor=…)",
    "tracking_uri": "MLflow(uri=…)",
    "experiment_name": "MLflow(experiment=…)",
    "prog_bar": "run.record(name, value) in a hook, which the bar shows too",
    "on_step": "run.record(name, value) in a hook",
    "on_epoch": "hooks.Metrics(…), which are values of an epoch",
    "sync_dist": "hooks.Metrics(…), which are the same on all ranks",
    "init_val": "find_batch_size(start=…)",
    "max_val": "find_batch_size(largest=…)",
}


def _of_schedules(argument: str) -> str:
    names = ("cosine", "linear", "polynomial", "constant")
    return " ".join(f"nn.lr.{name}({argument}=…)" for name in names)


HUGGING_FACE = {
    "args": "Trainer(Engine(model, optimizer, criterion), …) and fit(epochs=…)",
    "training_args": "Trainer(Engine(model, optimizer, criterion), …) and fit(epochs=…)",
    "train_dataset": "fit(train_loader=DataLoader(…))",
    "eval_dataset": "fit(val_loader=DataLoader(…)) evaluate(loader=DataLoader(…))",
    "test_dataset": "predict(data=DataLoader(…))",
    "data_collator": "fit(train_loader=DataLoader(…, collate_fn=…))",
    "tokenizer": "fit(train_loader=DataLoader(…, collate_fn=…))",
    "processing_class": "fit(train_loader=DataLoader(…, collate_fn=…))",
    "compute_metrics": "hooks.Metrics(…)",
    "compute_loss_func": "Engine(criterion=…)",
    "preprocess_logits_for_metrics": "hooks.Metrics(read=…)",
    "optimizers": "Engine(optimizer=…)",
    "model_init": "Engine(model, optimizer, criterion), one for each trial",
    "output_dir": "Trainer(run_dir=…)",
    "num_train_epochs": "fit(epochs=…)",
    "max_train_steps": "fit(max_steps=…)",
    "per_device_train_batch_size": "fit(train_loader=DataLoader(…, batch_size=…))",
    "per_device_eval_batch_size": "fit(val_loader=DataLoader(…, batch_size=…))",
    "train_batch_size": "fit(train_loader=DataLoader(…, batch_size=…))",
    "auto_find_batch_size": "data.find_batch_size(attempt=…)",
    "gradient_accumulation_steps": "Trainer(accumulate=…)",
    "learning_rate": "the optimizer: torch.optim.AdamW(model.parameters(), lr=…)",
    "lr": "the optimizer: torch.optim.AdamW(model.parameters(), lr=…)",
    "weight_decay": "the optimizer: torch.optim.AdamW(model.parameters(), weight_decay=…)",
    "optim": "Engine(optimizer=…)",
    "max_grad_norm": "Engine(clip_norm=…)",
    "lr_scheduler_type": "Engine(lr_scheduler=…)",
    "num_warmup_steps": _of_schedules("warmup_steps"),
    "num_training_steps": _of_schedules("total_steps"),
    "fp16": "Engine(precision='fp16')",
    "bf16": "Engine(precision='bf16')",
    "mixed_precision": "Engine(precision=…)",
    "no_cuda": "Engine(device='cpu')",
    "use_cpu": "Engine(device='cpu')",
    "cpu": "Engine(device='cpu')",
    "torch_compile": "Engine(compile=…)",
    "fsdp": "Engine(layout=Layout(shard=-1))",
    "deepspeed": "Engine(layout=Layout(shard=-1))",
    "ddp_find_unused_parameters": "Engine(layout=…), which needs no such flag",
    "dataloader_num_workers": "fit(train_loader=DataLoader(…, num_workers=…))",
    "logging_steps": "hooks.default(log_every=…)",
    "logging_dir": "Trainer(run_dir=…)",
    "report_to": "hooks.Write(events.WandB())",
    "log_with": "hooks.Write(events.WandB())",
    "disable_tqdm": "hooks.default(progress=False)",
    "eval_strategy": "fit(validate_every=…)",
    "evaluation_strategy": "fit(validate_every=…)",
    "eval_steps": "fit(validate_every=…)",
    "save_strategy": "Checkpoint(every=…)",
    "save_steps": "Checkpoint(every=…)",
    "save_total_limit": "Checkpoint(keep=…)",
    "load_best_model_at_end": "hooks.KeepBest(monitor=…)",
    "metric_for_best_model": "Checkpoint(best=…) KeepBest(monitor=…)",
    "greater_is_better": "Checkpoint(mode='max') KeepBest(mode='max')",
    "early_stopping_patience": "EarlyStopping(patience=…)",
    "early_stopping_threshold": "EarlyStopping(min_delta=…)",
    "resume_from_checkpoint": "fit(resume=…)",
    "ignore_data_skip": "fit(resume=…), which skips no data and repeats none",
    "full_determinism": "Trainer(seed=…) and torch.use_deterministic_algorithms(True)",
    "run_name": "Trainer(run_dir=…)",
    "metric_key_prefix": "evaluate(loader={'name': loader})",
    "label_smoothing_factor": "nn.CrossEntropyLoss(label_smoothing=…)",
    "neftune_noise_alpha": "a step of your own: Trainer(step=…)",
    "trial": "Trainer(params=…)",
    "project_dir": "Trainer(run_dir=…)",
    "split_batches": "fit(train_loader=DataLoader(…, batch_size=…))",
    "device_placement": "Engine(device=…)",
    "output_loading_info": "load_weights(), which returns what did not fit",
    "lr_scheduler_kwargs": "Engine(lr_scheduler=…)",
    "warmup_steps": "nn.lr.linear(optimizer, total_steps, warmup_steps=…)",
    "warmup_ratio": "nn.lr.linear(optimizer, total_steps, warmup_ratio=…)",
    "optim_args": "Engine(optimizer=…)",
    "optimizer_cls_and_kwargs": "Engine(optimizer=…)",
    "adam_beta1": "the optimizer: torch.optim.AdamW(model.parameters(), betas=(…, …))",
    "adam_beta2": "the optimizer: torch.optim.AdamW(model.parameters(), betas=(…, …))",
    "adam_epsilon": "the optimizer: torch.optim.AdamW(model.parameters(), eps=…)",
    "gradient_checkpointing": "Engine(activation_checkpointing='blocks')",
    "gradient_checkpointing_kwargs": "Engine(activation_checkpointing='blocks')",
    "activation_checkpointing_kwargs": "Engine(activation_checkpointing='blocks')",
    "tf32": "torch.set_float32_matmul_precision('high')",
    "bf16_full_eval": "Engine(precision='bf16')",
    "fp16_full_eval": "Engine(precision='fp16')",
    "fp16_opt_level": "Engine(precision='fp16')",
    "torch_compile_backend": "Engine(compile=True)",
    "torch_compile_mode": "Engine(compile=True)",
    "average_tokens_across_devices": "Engine(layout=…), where each token counts once",
    "logging_strategy": "hooks.default(log_every=…)",
    "logging_first_step": "hooks.default(log_every=1)",
    "log_level": "logging.getLogger('stoker').setLevel(…)",
    "eval_on_start": "trainer.evaluate(val_loader) before the fit",
    "eval_accumulation_steps": "evaluate(), which keeps sums instead of outputs for each metric",
    "batch_eval_metrics": "hooks.Metrics(…), which are updated batch by batch",
    "save_only_model": "hooks.SaveWeights(every='…ep')",
    "save_safetensors": "hooks.SaveWeights(), which always writes safetensors",
    "overwrite_output_dir": "Trainer(run_dir=…), which never overwrites a run",
    "push_to_hub": "trainer.save(…), and upload the folder yourself",
    "hub_model_id": "trainer.save(…), and upload the folder yourself",
    "data_seed": "DataLoader(…, generator=torch.Generator().manual_seed(…))",
    "dataloader_drop_last": "fit(train_loader=DataLoader(…, drop_last=…))",
    "dataloader_pin_memory": "fit(train_loader=DataLoader(…, pin_memory=…))",
    "dataloader_prefetch_factor": "fit(train_loader=DataLoader(…, prefetch_factor=…))",
    "dataloader_persistent_workers": "DataLoader(…, num_workers=…, persistent_workers=True)",
    "group_by_length": "fit(train_loader=DataLoader(…, batch_sampler=…))",
    "train_sampling_strategy": "fit(train_loader=DataLoader(…, sampler=…))",
    "remove_unused_columns": "fit(train_loader=DataLoader(…, collate_fn=…))",
    "label_names": "Trainer(step=f) with f(engine, batch) -> loss",
    "local_rank": "launch.run(train, nproc=…) or torchrun, which set it",
    "ddp_timeout": "launch.run(dead_after=…)",
    "ddp_bucket_cap_mb": "Engine(layout=…), which needs no such flag",
    "do_train": "trainer.fit(train_loader)",
    "do_eval": "trainer.evaluate(loader)",
    "do_predict": "trainer.predict(loader)",
}

KERAS = {
    "x": "fit(train_loader=DataLoader(…)) evaluate(loader=DataLoader(…)) predict(data=…)",
    "y": "fit(train_loader=DataLoader(TensorDataset(x, y), …))",
    "batch_size": "fit(train_loader=DataLoader(…, batch_size=…)) "
    "evaluate(loader=DataLoader(…, batch_size=…)) predict(data=DataLoader(…, batch_size=…))",
    "validation_data": "fit(val_loader=…)",
    "validation_split": "torch.utils.data.random_split and fit(val_loader=…)",
    "validation_freq": "fit(validate_every='…ep')",
    "validation_steps": "fit(limit_val_batches=…)",
    "validation_batch_size": "fit(val_loader=DataLoader(…, batch_size=…))",
    "steps_per_epoch": "fit(limit_train_batches=…)",
    "initial_epoch": "fit(resume=…), which knows the epoch",
    "shuffle": "fit(train_loader=DataLoader(…, shuffle=True))",
    "class_weight": "nn.CrossEntropyLoss(weight=…)",
    "sample_weight": "a step that returns Output(loss, weight=…): Trainer(step=…)",
    "verbose": "hooks.default(progress=…)",
    "steps": "evaluate(limit_batches=…)",
    "nb_epoch": "fit(epochs=…)",
    "return_dict": "evaluate(), which always returns a dict",
    "loss": "Engine(criterion=…)",
    "metrics": "Trainer(hooks=[*hooks.default(), hooks.Metrics(…)])",
    "weighted_metrics": "Trainer(hooks=[*hooks.default(), hooks.Metrics(…)])",
    "jit_compile": "Engine(compile=…)",
    "run_eagerly": "Engine(compile=False)",
    "steps_per_execution": "Engine(compile=…)",
    "clipnorm": "Engine(clip_norm=…)",
    "global_clipnorm": "Engine(clip_norm=…)",
    "clipvalue": "Engine(clip_value=…)",
    "filepath": "Checkpoint(folder=…) SaveWeights(path=…)",
    "save_best_only": "Checkpoint(best=…)",
    "save_freq": "Checkpoint(every=…)",
    "restore_best_weights": "hooks.KeepBest(monitor=…)",
    "start_from_epoch": "EarlyStopping(patience=…)",
    "factor": "hooks.Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=…))",
    "histogram_freq": "hooks.Write(events.TensorBoard())",
    "update_freq": "Write(every=…)",
    "loss_weights": "Trainer(step=f) with f(engine, batch) -> the weighted sum",
    "backup_dir": "Trainer(run_dir=…)",
    "initial_value_threshold": "hooks.KeepBest('val/loss')",
    "cooldown": "hooks.Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, cooldown=…))",
    "min_lr": "hooks.Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=…))",
    "write_graph": "hooks.Write(events.TensorBoard())",
    "profile_batch": "hooks.Profiler(start=…)",
    "ema_momentum": "EMA(decay=…)",
    "use_ema": "hooks.EMA()",
    "swap_on_epoch": "hooks.EMA(), whose average is validated",
    "auto_scale_loss": "Engine(precision='fp16')",
}

IGNITE = {
    "data": "fit(train_loader=…) Layout(replicate=…)",
    "epoch_length": "fit(limit_train_batches=…)",
    "process_function": "Trainer(step=…)",
    "loss_fn": "Engine(criterion=…)",
    "max_iters": "fit(max_steps=…)",
    "handlers": "Trainer(hooks=…)",
    "to_save": "hooks.Checkpoint(…), which saves everything",
    "save_handler": "Checkpoint(folder=…)",
    "n_saved": "Checkpoint(keep=…)",
    "score_name": "Checkpoint(best=…)",
    "score_function": "Checkpoint(best=…, mode=…) EarlyStopping(monitor=…, mode=…)",
    "filename_prefix": "SaveWeights(path='…{epoch}…')",
    "limit_sec": "TimeLimit(minutes=…)",
    "create_dir": "Checkpoint(folder=…)",
    "cumulative_delta": "EarlyStopping(min_delta=…)",
    "min_delta_mode": "EarlyStopping(min_delta=…)",
    "trainer": "Trainer(hooks=…)",
    "output_transform": "Metrics(read=…)",
    "amp_mode": "Engine(precision=…)",
    "scaler": "Engine(precision='fp16')",
    "gradient_accumulation_steps": "Trainer(accumulate=…)",
    "prepare_batch": "Trainer(step=…)",
    "non_blocking": "DataLoader(…, pin_memory=True)",
    "event_name": "hooks.Callback(after_step=…)",
    "momentum": "EMA(decay=…)",
    "dirname": "Checkpoint(folder=…) SaveWeights(path=…)",
    "filename_pattern": "SaveWeights(path='…{epoch}…')",
    "require_empty": "Trainer(run_dir=…), which never overwrites a run",
    "save_on_rank": "hooks.Checkpoint(), to which each rank writes its part",
    "threshold_mode": "EarlyStopping(min_delta=…)",
    "cumulative": "EarlyStopping(min_delta=…)",
    "persist": "hooks.Progress()",
    "start_lr": "the command 'stoker lr-find'",
    "end_lr": "the command 'stoker lr-find'",
}

ACCELERATE = {
    "accelerator": "Engine(device=…)",
    "fsdp_plugin": "Engine(layout=Layout(shard=-1))",
    "deepspeed_plugin": "Engine(layout=Layout(shard=-1))",
    "megatron_lm_plugin": "Engine(layout=Layout(tensor=…))",
    "parallelism_config": "Engine(layout=Layout(…))",
    "gradient_accumulation_plugin": "Trainer(accumulate=…)",
    "dataloader_config": "fit(train_loader=DataLoader(…))",
    "kwargs_handlers": "Engine(precision=…, layout=…)",
    "dynamo_backend": "Engine(compile=…)",
    "dynamo_plugin": "Engine(compile=…)",
    "project_config": "Trainer(run_dir=…)",
    "rng_types": "Trainer(seed=…)",
    "even_batches": "fit(train_loader=…), which gives each sample to one process",
    "use_seedable_sampler": "fit(resume=…), which restores the order of the data",
    "step_scheduler_with_optimizer": "Engine(lr_step=…)",
    "total_limit": "Checkpoint(keep=…)",
    "init_kwargs": "events.WandB(project=…)",
    "project_name": "WandB(project=…)",
    "safe_serialization": "hooks.SaveWeights(), which always writes safetensors",
    "input_dir": "load(path=…)",
    "save_directory": "trainer.save(…)",
}

FASTAI = {
    "dls": "fit(train_loader=…, val_loader=…)",
    "cbs": "Trainer(hooks=…)",
    "callback_fns": "Trainer(hooks=…)",
    "opt_func": "Engine(optimizer=…)",
    "loss_func": "Engine(criterion=…)",
    "n_epoch": "fit(epochs=…)",
    "freeze_epochs": "FreezeLayers(until_epoch=…)",
    "lr_max": "the optimizer: torch.optim.AdamW(model.parameters(), lr=…)",
    "base_lr": "the optimizer: torch.optim.AdamW(model.parameters(), lr=…)",
    "wd": "the optimizer: torch.optim.AdamW(model.parameters(), weight_decay=…)",
    "moms": "the optimizer: torch.optim.AdamW(model.parameters(), betas=…)",
    "splitter": "nn.parameter_groups(model)",
    "reset_opt": "Trainer(Engine(model, optimizer, criterion)), one for each fit",
    "pct_start": _of_schedules("warmup_ratio"),
    "wd_bn_bias": "nn.parameter_groups(model)",
    "train_bn": "FreezeLayers(freeze_bn=…)",
    "fname": "Checkpoint(folder=…) SaveWeights(path=…)",
    "model_dir": "Trainer(run_dir=…)",
    "bs": "fit(train_loader=DataLoader(…, batch_size=…))",
    "every_epoch": "Checkpoint(every='…ep')",
    "at_end": "KeepBest(monitor=…)",
    "comp": "EarlyStopping(mode=…) Checkpoint(mode=…) KeepBest(mode=…)",
    "dl": "evaluate(loader=…) predict(data=…)",
    "ds_idx": "evaluate(loader=…)",
}

COMPOSER = {
    "max_duration": "fit(epochs=…) or fit(max_steps=…)",
    "algorithms": "Trainer(hooks=…)",
    "algorithm_passes": "Trainer(hooks=…), which run in the order of their priorities",
    "eval_dataloader": "fit(val_loader=…)",
    "eval_interval": "fit(validate_every=…)",
    "eval_subset_num_batches": "fit(limit_val_batches=…)",
    "train_subset_num_batches": "fit(limit_train_batches=…)",
    "subset_num_batches": "evaluate(limit_batches=…)",
    "train_dataloader_label": "evaluate(loader={'name': loader})",
    "spin_dataloaders": "fit(resume=…), which restores the position in the data",
    "schedulers": "Engine(lr_scheduler=…)",
    "step_schedulers_every_batch": "Engine(lr_step='step')",
    "device_train_microbatch_size": "Trainer(accumulate=batch_size // microbatch_size)",
    "grad_accum": "Trainer(accumulate=…)",
    "parallelism_config": "Engine(layout=Layout(…))",
    "fsdp_config": "Engine(layout=Layout(shard=-1))",
    "deepspeed_config": "Engine(layout=Layout(shard=-1))",
    "save_folder": "Trainer(run_dir=…) Checkpoint(folder=…)",
    "save_interval": "Checkpoint(every=…)",
    "save_filename": "SaveWeights(path='…{epoch}…')",
    "save_overwrite": "Trainer(run_dir=…), which never overwrites a run",
    "save_num_checkpoints_to_keep": "Checkpoint(keep=…)",
    "num_checkpoints_to_keep": "Checkpoint(keep=…)",
    "autoresume": "fit(resume='auto'), which is the default",
    "load_path": "fit(resume=…) load_weights(path=…)",
    "load_weights_only": "load_weights(path=…)",
    "load_strict_model_weights": "load_weights(), which returns what did not fit",
    "load_ignore_keys": "load_weights(), which returns what did not fit",
    "progress_bar": "hooks.default(progress=…)",
    "log_to_console": "hooks.default(progress=…)",
    "console_log_interval": "hooks.default(log_every=…)",
    "python_log_level": "logging.getLogger('stoker').setLevel(…)",
    "dist_timeout": "launch.run(dead_after=…)",
    "ddp_sync_strategy": "Engine(layout=…), which needs no such flag",
    "deterministic_mode": "Trainer(seed=…) and torch.use_deterministic_algorithms(True)",
    "compile_config": "Engine(compile=…)",
    "precision_config": "Engine(precision=…)",
    "half_life": "EMA(decay=…)",
    "smoothing": "EMA(decay=…)",
    "swa_start": "SWA(start_epoch=…)",
    "clipping_threshold": "Engine(clip_norm=…)",
    "clipping_type": "Engine(clip_norm=…) or Engine(clip_value=…)",
    "auto_log_hparams": "Trainer(params={…})",
    "accumulate_train_batch_on_tokens": "Engine(layout=…), where each token counts once",
    "update_interval": "EMA(), which averages at every step",
    "swa_lr": "Engine(lr_scheduler=torch.optim.swa_utils.SWALR(optimizer, …))",
    "dataloader_label": "evaluate(loader={'name': loader})",
    "return_outputs": "predict(), which always returns the outputs",
    "ignore_keys": "load_weights(), which returns what did not fit",
}

TORCH = {
    "scheduler": "Engine(lr_scheduler=…)",
    "schedulers": "Engine(lr_scheduler=…)",
    "lr_schedulers": "Engine(lr_scheduler=…)",
    "loss_function": "Engine(criterion=…)",
    "optim": "Engine(optimizer=…)",
    "net": "Engine(model=…)",
    "module": "Engine(model=…)",
    "network": "Engine(model=…)",
    "n_epochs": "fit(epochs=…)",
    "num_epochs": "fit(epochs=…)",
    "max_iter": "fit(max_steps=…)",
    "dataloader": "fit(train_loader=…) evaluate(loader=…) predict(data=…)",
    "trainloader": "fit(train_loader=…)",
    "valloader": "fit(val_loader=…)",
    "valid_loader": "fit(val_loader=…)",
    "test_loader": "evaluate(loader=…) predict(data=…)",
    "grad_clip": "Engine(clip_norm=…)",
    "clip_grad_norm": "Engine(clip_norm=…)",
    "max_norm": "Engine(clip_norm=…)",
    "amp": "Engine(precision='bf16')",
    "dtype": "Engine(precision=…)",
    "device_ids": "launch.run(nproc=…)",
    "find_unused_parameters": "Engine(layout=…), which needs no such flag",
    "random_seed": "Trainer(seed=…)",
    "seed_everything": "Trainer(seed=…)",
    "output_device": "Engine(device=…)",
    "log_dir": "Trainer(run_dir=…) TensorBoard(path=…)",
    "logdir": "Trainer(run_dir=…) TensorBoard(path=…)",
    "dp": "Layout(replicate=…)",
    "ddp": "Layout(replicate=…)",
    "data_parallel": "Layout(replicate=…)",
    "tp": "Layout(tensor=…)",
    "tensor_parallel": "Layout(tensor=…)",
    "tensor_parallel_size": "Layout(tensor=…)",
    "pp": "Layout(pipeline=…)",
    "pipeline_parallel": "Layout(pipeline=…)",
    "pipeline_parallel_size": "Layout(pipeline=…)",
    "num_processes": "launch.run(nproc=…)",
    "nprocs": "launch.run(nproc=…)",
    "nproc_per_node": "launch.run(nproc=…)",
    "world_size": "launch.run(nproc=…)",
    "num_proc": "launch.run(nproc=…)",
    "backend": "Engine(device=…)",
    "tolerance": "EarlyStopping(min_delta=…)",
    "metric": "EarlyStopping(monitor=…) Checkpoint(best=…)",
    "beta": "EMA(decay=…)",
    "ema_decay": "EMA(decay=…)",
    "k": "Accuracy(topk=…)",
    "top_k": "Accuracy(topk=…)",
    "task": "metrics.get('MulticlassAccuracy', …)",
    "num_classes": "metrics.get('MulticlassAccuracy', …)",
    "strict": "load_weights(), which returns what did not fit",
    "map_location": "load_weights(), which copies into the model where it is",
    "hours": "TimeLimit(minutes=60 * hours)",
    "seconds": "TimeLimit(minutes=seconds / 60)",
    "period": "Checkpoint(every=…)",
    "layers": "FreezeLayers(names=…)",
    "modules": "FreezeLayers(names=…)",
    "t_max": _of_schedules("total_steps"),
    "dp_size": "Layout(replicate=…)",
    "ddp_size": "Layout(replicate=…)",
    "tp_size": "Layout(tensor=…)",
    "pp_size": "Layout(pipeline=…)",
    "cp": "Layout(context=…)",
    "cp_size": "Layout(context=…)",
    "context_parallel": "Layout(context=…)",
    "context_parallel_size": "Layout(context=…)",
    "fsdp_size": "Layout(shard=…)",
    "dp_shard": "Layout(shard=…)",
    "dp_replicate": "Layout(replicate=…)",
    "zero": "Layout(shard=-1)",
    "zero_stage": "Layout(shard=-1)",
    "num_microbatches": "Layout(microbatches=…)",
    "drop_remainder": "fit(train_loader=DataLoader(…, drop_last=…))",
    "amp_level": "Engine(precision=…)",
    "amp_backend": "Engine(precision=…)",
}

OURS = {
    "epochs": "fit(epochs=…)",
    "train_loader": "fit(train_loader=…)",
    "val_loader": "fit(val_loader=…)",
    "validate_every": "fit(validate_every=…)",
    "resume": "fit(resume=…)",
    "hooks": "Trainer(hooks=…)",
    "step": "Trainer(step=…)",
    "accumulate": "Trainer(accumulate=…)",
    "run_dir": "Trainer(run_dir=…)",
    "seed": "Trainer(seed=…)",
    "optimizer": "Engine(optimizer=…)",
    "criterion": "Engine(criterion=…)",
    "lr_scheduler": "Engine(lr_scheduler=…)",
    "clip_norm": "Engine(clip_norm=…)",
    "clip_value": "Engine(clip_value=…)",
    "layout": "Engine(layout=…)",
    "compile": "Engine(compile=…)",
    "device": "Engine(device=…)",
}
"""Arguments of ours that belong to another call."""

TABLES = {
    "Lightning": LIGHTNING,
    "Hugging Face": HUGGING_FACE,
    "Keras": KERAS,
    "Ignite": IGNITE,
    "Accelerate": ACCELERATE,
    "fastai": FASTAI,
    "Composer": COMPOSER,
    "PyTorch": TORCH,
    "Stoker": OURS,
}

_TIMES_OF_POINTS = {
    **dict.fromkeys(("begin", "start", "started"), "before"),
    **dict.fromkeys(("end", "completed"), "after"),
}
_PARTS_OF_POINTS = {
    **dict.fromkeys(("train_batch", "batch", "step", "iteration"), "step"),
    **dict.fromkeys(("validation_batch", "test_batch", "val_batch", "prediction_step"), "val_step"),
    **dict.fromkeys(("validation_epoch", "validation", "test", "test_epoch", "val"), "val"),
    **dict.fromkeys(("predict_batch",), "predict_step"),
    **{name: name for name in ("epoch", "train", "predict")},
    "train_epoch": "epoch",
    "fit": "run",
}


def point_of(name: str) -> str | None:
    """Return the point of ours at which other trainers call a method of a callback, or None.

    >>> point_of("on_train_batch_end")
    'after_step'
    """
    if name == "on_evaluate":
        return "after_val"
    part, _, when = name.lower().removeprefix("on_").rpartition("_")
    if when not in _TIMES_OF_POINTS or part not in _PARTS_OF_POINTS:
        return None
    return f"{_TIMES_OF_POINTS[when]}_{_PARTS_OF_POINTS[part]}"


CALL = re.compile(r"(?:[a-z]+\.)*([A-Za-z_]+)\((\w+)=")
"""A call with its first argument, in the right-hand side of a table."""

_COMPLETE = re.compile(r"[\w.]+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""A complete call, with calls two deep among its arguments."""

_PERIOD = re.compile(r"\d+(?:st|ep|min)")
_PERIODS = {"epoch": "1ep"}
"""Values of other trainers for periods."""

_VALUES = {
    "16-mixed": "fp16",
    "16": "fp16",
    "no": "fp32",
    "32": "fp32",
    "32-true": "fp32",
    "bf16-mixed": "bf16",
    "gpu": "auto",
    **dict.fromkeys(("float16", "half", "16-true", "mixed_float16", "amp_fp16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16-true", "mixed_bfloat16", "amp_bf16"), "bf16"),
    **dict.fromkeys(("float32", "float", "full", "amp_fp32"), "fp32"),
    **{name: name for name in ("fp16", "bf16", "fp32", "auto", "cpu", "cuda", "mps")},
}
"""Values of other trainers for precisions and devices."""

_METHODS = ("fit", "evaluate", "predict", "load")


def precision_of(value: Any) -> str | None:
    """Return our name for another trainer's precision, or None."""
    return _VALUES.get(str(value).removeprefix("torch."))


def class_of(name: str) -> str | None:
    """Return what to use instead of another trainer's class or function, or None."""
    return {word.lower(): text for word, text in CLASSES.items()}.get(name.lower())


def missing_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module does not have, with what works instead."""
    found = class_of(name)
    instead = f"; use {found}" if found is not None else did_you_mean(name, names)
    if name.startswith("__"):
        instead = ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{instead}", name=name)


def instead_of(name: str, value: Any, call: str, arguments: Iterable[str]) -> str | None:
    """Return what to write instead of another trainer's argument, or None.

    >>> instead_of("max_epochs", 3, "Trainer", [])
    'trainer.fit(…, epochs=3)'
    """
    entry = _entry(name, call)
    return None if entry is None else _filled(entry, value, call, arguments)


def arguments_of(name: str, call: str) -> list[tuple[str, str]]:
    """Return the calls and arguments of ours that take another trainer's value."""
    return re.findall(f"{CALL.pattern}…", _entry(name, call) or "")


def _entry(name: str, call: str) -> str | None:
    entries = [
        entry
        for table in TABLES.values()
        if (text := table.get(name.lower())) is not None
        for entry in _alternatives(text)
    ]
    of_this_call = (one for one in entries if (at := CALL.match(one)) and at[1] == call)
    return next(of_this_call, entries[0] if entries else None)


def _alternatives(text: str) -> list[str]:
    """Split "Checkpoint(best=…) KeepBest(monitor=…)" into its calls; other texts stay together."""
    calls = _COMPLETE.findall(text)
    return calls if " ".join(calls) == text else [text]


def _filled(entry: str, value: Any, call: str, arguments: Iterable[str]) -> str:
    """Return the call with the value in place of its ellipsis, as short as it can be."""
    found = CALL.match(entry)
    if found is None:
        return entry
    owner, argument = found.groups()
    value = our_value(argument, value)
    plain = isinstance(value, bool | int | float | str) and len(repr(value)) <= 40
    if plain and entry.count("=…") == 1:
        entry = entry.replace("=…", f"={value!r}")
    elif plain and not isinstance(value, str):
        entry = re.sub(r"'…(st|ep|min)'", rf"'{value}\1'", entry)
    if owner == call and argument in arguments:
        end = _COMPLETE.match(entry).end()  # type: ignore[union-attr]
        return entry[found.end(1) + 1 : end - 1] + entry[end:]
    return f"trainer.{owner}(…, {entry.partition('(')[2]}" if owner in _METHODS else entry


def our_value(argument: str, value: Any) -> Any:
    """Return another trainer's value as ours, or an ellipsis if there is none."""
    if argument in ("precision", "device"):
        return _VALUES.get(str(value), ...)
    if argument == "progress" and value is not ...:
        return bool(value)
    if argument in ("every", "validate_every") and isinstance(value, str):
        return value if _PERIOD.fullmatch(value) else _PERIODS.get(value, ...)
    if argument in ("best", "monitor") and isinstance(value, str):
        return re.sub("^(?:val|valid|eval)_", "val/", value.removeprefix("metrics/"))
    return value
