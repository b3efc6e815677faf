#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/tensor/dtype.h"
#include "training/data/packer.h"
#include "training/data/row_source.h"
#include "training/data/shard_list.h"
#include "training/dist/mesh.h"
#include "training/lora/lora_options.h"
#include "training/optim/guards.h"
#include "training/optim/optimizer.h"
#include "training/program/remat_options.h"
#include "training/spec/distill_options.h"
#include "training/spec/dpo_options.h"
#include "training/spec/fresh_init.h"

namespace tandem::training {

// The family of fresh weights by fields when a run names none.
std::string DefaultFreshFamily();

// Where the weights come from, and the shape of fresh weights.
struct ModelSection {
  std::filesystem::path load_parameters_path;  // directory or file; empty: fresh weights
  std::filesystem::path config_path;           // config.json for fresh weights; empty: the fields
  std::string family = DefaultFreshFamily();
  int64_t n_layers = 4;
  int64_t hidden_dim = 256;
  int64_t ffn_dim = 0;  // 0: the family's share of hidden_dim (FreshFields)
  int64_t n_heads = 4;
  int64_t n_kv_heads = 0;       // 0: n_heads
  int64_t head_dim = 0;         // 0: hidden_dim / n_heads
  int64_t vocab_size = 0;       // 0: the tokenizer's
  int64_t max_context_len = 0;  // 0: max_target_length
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  bool tied_embeddings = true;
  // Absent: the configuration's own value; 0 for fresh weights described by fields.
  std::optional<double> dropout;
  bool enable_dropout = true;  // false: no dropout at all, adapters included
  FreshInit init = FreshInit::kNormal;
  double init_std = 0.02;
  uint64_t init_seed = 0;
  std::filesystem::path tokenizer_path;  // directory or file; empty: load_parameters_path
  std::filesystem::path chat_template;   // file; renders chats and is exported with the model
  std::vector<std::string> trainable;    // regular expressions on weight names; empty: all
  bool freeze_router = false;            // the routers of experts are not trained
};

enum class Header { kNone, kContentWords };

// Whether the chat template wraps instructions and plain prompts.
enum class ApplyTemplate { kAuto, kAlways, kNever };

// The date a chat template sees when the spec gives none: 26 July 2024. Templates that show a date
// use the same day as their own fallback.
inline constexpr int64_t kTemplateUnixS = 1721952000;

// The tokens of the loss: those that samples mark, or every place of a row, padding included.
enum class LossMask { kTrained, kAll };

struct DataSection {
  std::filesystem::path train;
  std::filesystem::path eval;  // empty: none
  bool synthetic = false;      // random tokens instead of `train`
  // Data set in the hub's layout: the default of `train` and, with eval_split set, of `eval`.
  std::filesystem::path hf_path;
  std::string train_split;  // of a directory; empty: its only split
  std::string eval_split;
  RowContainer container = RowContainer::kAuto;  // of the files of `train`; auto: by their names
  RowContainer eval_container = RowContainer::kAuto;  // of the files of `eval`
  RowFormat format = RowFormat::kAuto;
  std::vector<std::string> columns;       // empty: the format's own names
  std::vector<std::string> eval_columns;  // empty: as columns
  // Absent: false for train.pretrain, true for the other kinds.
  std::optional<bool> train_on_completion_only;
  ApplyTemplate apply_template = ApplyTemplate::kAuto;
  Turns turns = Turns::kAuto;
  OnBadRow on_bad_row = OnBadRow::kError;
  int64_t template_unix_s = kTemplateUnixS;
  std::string delimiter = "<|endoftext|>";
  Header header = Header::kNone;
  bool add_bos = false;
  bool add_eos = true;
  std::string eos_token;  // spelling; empty: the tokenizer's, else the delimiter's
  std::string bos_token;  // spelling; empty: the tokenizer's, else the EOS
  int64_t max_target_length = 1024;
  Packing packing = Packing::kBestFit;
  Overflow overflow = Overflow::kTruncate;
  int64_t max_segments_per_seq = 64;
  bool shuffle = true;
  OrderKind order = OrderKind::kPermuted;
  int64_t shuffle_window = 0;           // samples; 0: the whole epoch
  std::vector<double> mixture_weights;  // one per path of `train`; empty: one set
  LossMask loss_mask = LossMask::kTrained;
  uint64_t seed = 0;
  int64_t num_epoch = 0;  // 0: as many as the steps take
};

// Options of kind train.dpo.
struct DpoSection {
  DpoOptions loss;
  int64_t max_prompt_length = 0;  // tokens; 0: no limit
};

// Options of kind train.distill.
struct DistillSection {
  DistillOptions loss;
  std::string teacher_url;    // base URL of an OpenAI-compatible server
  std::string teacher_model;  // its name there; empty: the server's only model
  // File with the server's key; empty: TANDEM_TEACHER_KEY, else none.
  std::filesystem::path teacher_key_file;
};

// Selects which of temperature, top_k and top_p apply.
enum class SampleStrategy { kComposite, kGreedy, kWeighted, kNucleus, kTopK };

struct SampleSection {
  int64_t every = 0;      // steps; 0: never
  bool at_start = false;  // also before the first step
  std::vector<std::string> prompts = {"Once upon a time"};
  int64_t max_tokens = 64;
  SampleStrategy strategy = SampleStrategy::kComposite;
  double temperature = 0.8;
  int64_t top_k = 40;
  double top_p = 1;
  uint64_t seed = 0;
};

struct TrainSection {
  int64_t steps = 0;
  int64_t per_device_batch_size = 8;  // rows per micro-batch
  int64_t gradient_accumulation_steps = 1;
  ScheduleSpec schedule;  // schedule_steps 0: steps
  OptimizerSpec optimizer;
  SpikeOptions spikes;
  OnNan on_nan = OnNan::kAbort;
  int64_t max_rollbacks = 3;
  double z_loss = 0;                   // factor of the logits' squared log-sum-exp
  double neftune_alpha = 0;            // noise on embeddings; 0: none
  std::filesystem::path loss_library;  // replaces cross-entropy (training/loss); empty: none
  std::string loss_options;            // passed to it
  double router_aux_loss = 0;          // RouterLossOptions, for models with experts
  double router_z_loss = 0;
  RematOptions remat;         // kAuto without max_bytes: limited by resources.memory_max_bytes
  int64_t eval_interval = 0;  // steps; 0: never
  int64_t eval_steps = 0;     // micro-batches; 0: all of the validation text
  double target_eval_loss = 0;
  int64_t early_stopping_patience = 0;  // evaluations without a better loss; 0: off
  SampleSection sample;
};

// Reaction to training data that changed since the checkpoint to resume from.
enum class OnChangedData { kError, kContinue };
// Reaction when no checkpoint can be read.
enum class OnUnreadable { kError, kRestart };

struct CheckpointSection {
  int64_t period = 0;  // steps; 0: only at the end or on a stop request
  int64_t keep = 3;
  bool keep_parameters = false;  // old checkpoints leave their weights in parameters/
  bool resume = true;            // resume from the newest valid checkpoint, if any
  OnChangedData on_changed_data = OnChangedData::kError;
  OnUnreadable on_unreadable = OnUnreadable::kError;
  bool async = true;  // training continues while a checkpoint is written
  // A second place, such as a RAM disk, and the steps between checkpoints there. Empty: none.
  std::filesystem::path local_dir;
  int64_t local_period = 0;
  // Every rank writes some tensors; always so when ranks share the parameters.
  bool sharded = false;
  int64_t shard_bytes = int64_t{256} << 20;  // most bytes of tensors in a file of a sharded one
  bool export_model = true;
  bool export_average = false;  // the moving average of the weights, to ema/, at the end
  bool export_best = true;      // the best evaluation's weights, to best/
  // Exports to exports/step-N, which are kept: every so many steps (0: never), and at the end of
  // each epoch.
  int64_t export_every = 0;
  bool export_epochs = false;
};

// Optional outputs next to metrics.jsonl.
struct MetricsSection {
  bool csv = false;
  bool tensorboard = false;
  bool wandb = false;  // files of an offline run, for `wandb sync`
  std::string wandb_project = "tandem";
  std::string wandb_name;  // empty: run_name
  bool plot = true;
};

// Traces some steps of each process.
struct ProfilerSection {
  bool enabled = false;
  int64_t skip_first_n_steps = 1;
  int64_t steps = 5;
};

// Training on several ranks: processes that a launcher such as mpirun starts together.
struct ParallelSection {
  MeshRequest mesh;
  // Number of equal parts of a step's rows, a power of two. Their gradients are added in a fixed
  // tree, so that every number of ranks that divides it gives the same bits. 0: off.
  int64_t world_invariant = 0;
  bool shard_optimizer = false;              // each rank keeps its part of the moments
  bool overlap = true;                       // sum gradients over ranks during the backward pass
  int64_t bucket_bytes = int64_t{32} << 20;  // least bytes of gradients that are summed at once
  bool elastic = false;                      // resume a run of another number of ranks
  double rank_timeout_s = 1800;              // longest wait for another rank; 0: no limit
  int64_t ranks_on_host = 1;  // they share its memory; from the launcher, without a key
};

// The micro-batches of a step over all ranks.
struct StepShape {
  int64_t rows_per_batch = 0;
  int64_t batches = 0;
  int64_t ranks = 1;          // that share the rows
  int64_t fsdp = 1;           // of these, ranks that share the parameters
  int64_t tensor = 1;         // ranks that compute the same rows, each with its part of matrices
  bool divides_rows = false;  // these divide the rows between shared matrices

  int64_t all_ranks() const { return ranks * tensor; }
};

struct ResourceSection {
  int64_t threads = 0;  // 0: one per physical core
  // Runs the job at the lowest scheduling priority.
  bool lower_priority = false;
  int64_t memory_max_bytes = 0;  // ceiling of the process's data; 0: none
};

// One training run, complete and checked. Plain data; every field states its default.
struct TrainSpec {
  std::string kind = "train.pretrain";
  std::string run_name = "run";
  std::filesystem::path base_output_directory = ".";
  ModelSection model;
  LoraOptions lora;
  DataSection data;
  DpoSection dpo;
  DistillSection distill;
  TrainSection train;
  CheckpointSection checkpoint;
  MetricsSection metrics;
  ProfilerSection profiler;
  ResourceSection resources;
  ParallelSection parallel;
  // Set for a run on several ranks (SplitStep); otherwise the values of `train` hold.
  std::optional<StepShape> step_shape;
  engine::DType compute = engine::DType::kBF16;
  int64_t log_period = 1;
  // Secret token for fetching models from the hub. Never shown, logged, recorded or exported.
  std::string hub_token;
  std::vector<std::string> notes;  // accepted keys that have no effect here
  // First name of a key -> source of its value ("spec.yaml:3", "base.yaml:7", "command line"). Keys
  // without an entry have their default.
  std::map<std::string, std::string> origins;

  bool is_dpo() const { return kind == "train.dpo"; }
  bool is_distill() const { return kind == "train.distill"; }
  // Sequences of up to max_target_length per packed row: both answers of a pair take a row.
  int64_t sequences_per_row() const { return is_dpo() ? 2 : 1; }
  int64_t tokens_per_row() const { return sequences_per_row() * data.max_target_length; }
  int64_t rows_per_batch() const {
    return step_shape ? step_shape->rows_per_batch : train.per_device_batch_size;
  }
  int64_t batches_per_step() const {
    return step_shape ? step_shape->batches : train.gradient_accumulation_steps;
  }
  std::filesystem::path run_dir() const { return base_output_directory / run_name; }
};

// Divides the rows of a step (per_device_batch_size times gradient_accumulation_steps, whatever the
// number of ranks) into micro-batches of equal size, of which each of `mesh.data * mesh.fsdp` gets
// the same number. Throws kInvalidArgument naming the keys when that is impossible, and
// kUnsupported for options that the mesh's axes do not permit.
StepShape SplitStep(const TrainSpec& spec, const Mesh& mesh);

// Reads a spec (YAML or JSON) and applies the `key=value` overrides on top. Keys are dotted
// ("train.learning_rate") or MaxText's flat names ("learning_rate"). `${VAR}` and `${VAR:-default}`
// are expanded. Throws kInvalidArgument with every fault, one per line; an unknown key comes with
// the nearest known one.
//
// LoadTrainSpec reads a file, which may name a file to build on (base_config) and override its
// values. In a file `${SPEC_DIR}` is the directory of that file. A `path` of the form `key=value`
// that names no file is the first override of an empty spec.
//
// ParseTrainSpec reads a text, which supports neither base_config nor ${SPEC_DIR}. It refuses a hub
// token, because texts come from requests and pipelines, which are recorded.
TrainSpec ParseTrainSpec(const std::string& text, const std::string& source,
                         std::span<const std::string> overrides);
TrainSpec LoadTrainSpec(const std::filesystem::path& path, std::span<const std::string> overrides);

// Joins paths with ';', the form in which a spec keeps a list.
std::string JoinPaths(const std::vector<std::string>& words);

// A key that names an input of the run: all its names ("data.train", "dataset_path", …) and its
// value in this spec.
struct SpecPath {
  std::vector<std::string> names;
  std::string path;
};
std::vector<SpecPath> PathsOf(const TrainSpec& spec);

}  // namespace tandem::training
