#include "training/spec/spec_foreign.h"

#include <string_view>

namespace tandem::training {
namespace {

constexpr const char* kAny = "*";
constexpr const char* kOff = "|false|False|0|-1|none|None|null";  // the empty value too

constexpr const char* kBackend = "a setting of MaxText's backend";
constexpr const char* kDevices = "each rank has all weights and moments";
constexpr const char* kMesh =
    "training splits a run over the axes data, fsdp, tensor and tensor_sequence only: leave this "
    "out or set 1";
constexpr const char* kWandbSync =
    "`wandb sync` decides where a run goes, and files are not uploaded";
constexpr const char* kExport = "a setting of Orbax files, which training does not write";
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
    {"elastic_*", kAny, kBackend}, {"attention", kAny, "there is only one attention kernel"},
    {"logical_axis_rules", kAny, kBackend}, {"mesh_axes", kAny, "the axes are data, fsdp, tensor and tensor_sequence"},
    {"ici_fsdp_t*", "|1|-1", kMesh}, {"ici_tensor_t*", "|1|-1", kMesh},
    {"ici_s*", "|1|-1", kMesh}, {"ici_c*", "|1|-1", kMesh}, {"ici_p*", "|1|-1", kMesh},
    {"ici_e*", "|1|-1", kMesh}, {"ici_a*", "|1|-1", kMesh}, {"ici_di*", "|1|-1", kMesh},
    {"dcn_fsdp_t*", "|1|-1", kMesh}, {"dcn_tensor_t*", "|1|-1", kMesh},
    {"dcn_s*", "|1|-1", kMesh}, {"dcn_c*", "|1|-1", kMesh}, {"dcn_p*", "|1|-1", kMesh},
    {"dcn_e*", "|1|-1", kMesh}, {"dcn_a*", "|1|-1", kMesh}, {"dcn_di*", "|1|-1", kMesh},
    {"mesh_*", "|1|-1|none|None|null", kMesh},
    {"enable_single_controller", kAny, kBackend}, {"skip_jax_distributed_system", kAny, kBackend},
    {"enable_single_replica_ckpt_restoring", kAny, kDevices},
    {"scan_layers", kAny, "layers always run in a loop"},
    {"param_scan_axis", kAny, "layers always run in a loop"},
    {"force_unroll", kAny, "exports always have one tensor per layer"},
    {"num_vocab_tiling", kAny, "the head is always tiled"},
    {"matmul_precision", kAny, kF32}, {"cast_logits_to_fp32", kAny, kF32},
    {"logits_dot_in_fp32", kAny, kF32}, {"float32_qk_product", kAny, kF32},
    {"float32_logits", kAny, kF32},
    {"weight_dtype", kAny, "master weights are always f32"},
    {"grad_dtype", kAny, "gradients are always f32"},
    {"model_name", kAny, kShape}, {"override_model_config", kAny, kShape},
    {"tokenizer_type", kAny, "the format is detected from the file"},
    {"tokenize_train_data", kAny, "the run always tokenises text itself"},
    {"grain_worker_count", kAny, "the training process reads the data itself"},
    {"grain_num_threads", kAny, "the training process reads the data itself"},
    {"grain_prefetch_buffer_size", kAny, "the training process reads the data itself"},
    {"enable_checkpointing", kAny, "a run always writes a checkpoint"},
    {"enable_autocheckpoint", kAny, "SIGTERM always saves a checkpoint"},
    {"save_checkpoint_on_completion", "true|True", "a run always saves a checkpoint at its end"},
    {"save_checkpoint_on_start", kOff, "no checkpoint is written before the first step"},
    {"checkpoint_storage_*", kAny, kExport},
    {"use_tunix_gradient_accumulation", kAny, "accumulation is always weighted by tokens"},
    {"steps_per_eval", kAny, "see train.eval_steps"},
    {"eval_per_device_batch_size", kAny, "evaluations use train.per_device_batch_size"},
    {"metrics_file", kAny, "metrics.jsonl in the run's directory always has the scalars"},
    {"gcs_metrics", kAny, "metrics.jsonl in the run's directory always has the scalars"},
    {"save_config_to_gcs", kAny, "see `tandem config show`"},
    {"log_config", kAny, "see `tandem config show`"},
    {"enable_goodput_recording", kAny, kGoodput}, {"monitor_goodput", kAny, kGoodput},
    {"goodput_upload_interval_seconds", kAny, kGoodput},
    {"monitor_step_time_deviation", kAny, "metrics.jsonl has the step times"},
    {"step_deviation_interval_seconds", kAny, "metrics.jsonl has the step times"},

    {"hf_name", kOff, "set hf_path to the directory of the subset"},
    {"hf_data_dir", kOff, "set hf_path to that directory"},
    {"grain_train_files", kOff, "use data.train, a list of paths, and data.mixture_weights"},
    {"wandb_entity", kAny, kWandbSync}, {"wandb_run_id", kAny, kWandbSync},
    {"wandb_log_model", kAny, kWandbSync}, {"wandb_watch", kAny, kWandbSync},
    {"distill_beta", kOff, "train.distill compares distributions only, not hidden states"},
    {"load_full_state_path", kOff, "a run resumes from the checkpoints below its own run_name"},
    {"lora_input_adapters_path", kOff, "use lora.load_path to continue training an adapter"},
    {"enable_continuous_checkpointing", kOff, "use checkpoint.period"},
    {"enable_emergency_checkpoint", kOff, "use local_checkpoint_directory and _period"},
    {"enable_multi_tier_checkpointing", kOff, "use local_checkpoint_directory and _period"},
    {"quantization", kOff, "train in bf16 and serve the result with --dtype"},
    {"use_qwix_quantization", kOff, "train in bf16 and serve the result with --dtype"},
    {"quantize_kvcache", kOff, "a setting of serving, not of training"},
    {"enable_rampup_batch_size", kOff, "the batch size is constant"},
    {"reuse_example_batch", kOff, "every step reads new data"},
    {"eval_start_step", kOff, "evaluations start at the first interval"},
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
