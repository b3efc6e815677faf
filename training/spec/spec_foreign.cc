#include "training/spec/spec_foreign.h"

#include <string_view>

namespace tandem::training {
namespace {

constexpr const char* kAny = "*";
constexpr const char* kOff = "|false|False|0|-1|none|None|null";  // the empty value too

constexpr const char* kBackend = "of MaxText's backend";
constexpr const char* kDevices = "there is one device here";
constexpr const char* kMesh =
    "one device trains, so leave it out or at 1; for the same global batch multiply "
    "train.gradient_accumulation_steps instead";
constexpr const char* kExport = "of Orbax files, which are not written here";
constexpr const char* kF32 = "sums, logits and softmax are always f32";
constexpr const char* kGoodput = "goodput is always measured: perf/goodput in metrics.jsonl";
constexpr const char* kShape = "shapes come from model.config or load_parameters_path";

struct Row {
  const char* name;
  const char* harmless;
  const char* note;
};

// clang-format off
constexpr Row kRows[] = {
    {"hardware", kAny, kBackend}, {"jax_*", kAny, kBackend}, {"dump_hlo*", kAny, kBackend},
    {"compile*", kAny, kBackend}, {"xla*", kAny, kBackend}, {"sa_*", kAny, kBackend},
    {"use_tokamax_*", kAny, kBackend}, {"colocated_*", kAny, kBackend},
    {"elastic_*", kAny, kBackend}, {"attention", kAny, "there is one kernel of attention"},
    {"logical_axis_rules", kAny, kBackend}, {"mesh_axes", kAny, kDevices},
    {"ici_*", "|1|-1", kMesh}, {"dcn_*", "|1|-1", kMesh}, {"mesh*", "|1|-1|none|None|null", kMesh},
    {"enable_single_controller", kAny, kBackend}, {"skip_jax_distributed_system", kAny, kBackend},
    {"shard_optimizer_over_data", kAny, kDevices},
    {"enable_single_replica_ckpt_restoring", kAny, kDevices},
    {"scan_layers", kAny, "layers are always looped over"},
    {"param_scan_axis", kAny, "layers are always looped over"},
    {"force_unroll", kAny, "exports are always by layer"},
    {"num_vocab_tiling", kAny, "the head is always tiled"},
    {"matmul_precision", kAny, kF32}, {"cast_logits_to_fp32", kAny, kF32},
    {"logits_dot_in_fp32", kAny, kF32}, {"float32_qk_product", kAny, kF32},
    {"float32_logits", kAny, kF32},
    {"weight_dtype", kAny, "masters are always f32"},
    {"grad_dtype", kAny, "gradients are always f32"},
    {"model_name", kAny, kShape}, {"override_model_config", kAny, kShape},
    {"dataset_type", kAny, "the file says what it is"},
    {"tokenizer_type", kAny, "the file says what it is"},
    {"tokenize_train_data", kAny, "text is always tokenised here"},
    {"grain_worker_count", kAny, "data is read in the step's own process"},
    {"grain_num_threads", kAny, "data is read in the step's own process"},
    {"grain_prefetch_buffer_size", kAny, "data is read in the step's own process"},
    {"enable_checkpointing", kAny, "a run always leaves a checkpoint"},
    {"enable_autocheckpoint", kAny, "SIGTERM always saves a checkpoint"},
    {"save_checkpoint_on_completion", "true|True", "the end always saves a checkpoint"},
    {"save_checkpoint_on_start", kOff, "there is nothing to save before the first step"},
    {"checkpoint_storage_*", kAny, kExport},
    {"use_tunix_gradient_accumulation", kAny, "accumulation is always weighted by tokens"},
    {"dpo.orpo_lambda", kAny, "of ORPO, which is not available"},
    {"steps_per_eval", kAny, "see train.eval_steps"},
    {"eval_per_device_batch_size", kAny, "evaluations use train.per_device_batch_size"},
    {"metrics_file", kAny, "scalars are always in metrics.jsonl of the run's directory"},
    {"gcs_metrics", kAny, "scalars are always in metrics.jsonl of the run's directory"},
    {"save_config_to_gcs", kAny, "see `tandem config show`"},
    {"log_config", kAny, "see `tandem config show`"},
    {"enable_goodput_recording", kAny, kGoodput}, {"monitor_goodput", kAny, kGoodput},
    {"goodput_upload_interval_seconds", kAny, kGoodput},
    {"monitor_step_time_deviation", kAny, "step times are in metrics.jsonl"},
    {"step_deviation_interval_seconds", kAny, "step times are in metrics.jsonl"},

    {"hf_name", kOff, "name the directory of the subset with hf_path"},
    {"hf_data_dir", kOff, "name the directory itself with hf_path"},
    {"grain_train_files", kOff, "use data.train: a pattern or a list of files, without weights"},
    {"enable_wandb", kOff, "use metrics.tensorboard or metrics.csv"},
    {"load_full_state_path", kOff, "a run resumes from the checkpoints below its own run_name"},
    {"lora_input_adapters_path", kOff, "name the adapter to go on from in lora.load_path, or serve it beside its base"},
    {"enable_continuous_checkpointing", kOff, "use checkpoint.period"},
    {"enable_emergency_checkpoint", kOff, "use checkpoint.period"},
    {"enable_multi_tier_checkpointing", kOff, "use checkpoint.period"},
    {"quantization", kOff, "train in bf16 and serve the result with --dtype"},
    {"use_qwix_quantization", kOff, "train in bf16 and serve the result with --dtype"},
    {"quantize_kvcache", kOff, "of serving, not of training"},
    {"enable_rampup_batch_size", kOff, "batches have one size"},
    {"z_loss_multiplier", "|0|0.0", "the loss is cross-entropy alone"},
    {"reuse_example_batch", kOff, "every step has its own data"},
    {"eval_start_step", kOff, "evaluations begin at the first interval"},
};
// clang-format on

bool IsNamed(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

}  // namespace

std::optional<ForeignKey> FindForeignKey(const std::string& name) {
  for (const Row& row : kRows) {
    if (IsNamed(row.name, name)) return ForeignKey{row.name, row.harmless, row.note};
  }
  return std::nullopt;
}

bool AcceptsForeignValue(const ForeignKey& key, const std::string& value) {
  if (key.harmless == kAny) return true;
  return ("|" + key.harmless + "|").find("|" + value + "|") != std::string::npos;
}

}  // namespace tandem::training
