#include "training/spec/spec.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/family.h"
#include "training/data/shard_list.h"
#include "training/spec/distill_rules.h"
#include "training/spec/ignored_keys.h"
#include "training/spec/spec_foreign.h"
#include "training/spec/spec_keys.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxSpecBytes = 4 << 20;
constexpr size_t kMaxBases = 8;
// MaxText's own specs name its file of defaults as their base.
constexpr const char* kMaxTextsBase = "base.yml";

// Reads sources of keys one after the other and collects every fault.
class SpecReader {
 public:
  TrainSpec spec;

  // Reads the files that `path` builds on, then `path` itself.
  void ReadFile(const fs::path& path) {
    const fs::path real = fs::weakly_canonical(path);
    if (std::find(files_.begin(), files_.end(), real) != files_.end()) {
      Fault(std::string(kBaseConfig) + ": " + path.string() + " is its own base: remove the cycle");
      return;
    }
    if (files_.size() > kMaxBases) {
      Fault(std::string(kBaseConfig) + ": the chain of base specs is longer than " +
            std::to_string(kMaxBases) + " files");
      return;
    }
    const std::string text = engine::ReadWholeFile(path, kMaxSpecBytes);
    files_.push_back(real);
    ReadYaml(text, path.string(), &path);
    files_.pop_back();
  }

  // `file`: null when the text comes from no file.
  void ReadYaml(const std::string& text, const std::string& source, const fs::path* file) {
    YAML::Node root;
    if (const auto error = ExceptionOf<YAML::Exception>([&] { root = YAML::Load(text); })) {
      Fault(source + ": " + error->what());
      return;
    }
    if (!root.IsMap()) {
      Fault(source + ": must be a mapping of keys to values");
      return;
    }
    ReadBase(root, file);
    seen_.clear();
    source_ = source;
    is_base_ = files_.size() > 1;
    Walk(root, "");
    is_base_ = false;
  }

  void ReadOverride(const std::string& word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      Fault("\"" + word + "\": must be key=value");
      return;
    }
    seen_.clear();
    source_ = kCommandLine;
    const std::string value = word.substr(equals + 1);
    if (value.starts_with("[")) {
      const auto error = ExceptionOf<YAML::Exception>([&] {
        YAML::Node node;
        node[word.substr(0, equals)] = YAML::Load(value);
        Walk(node, "");
      });
      if (error) Fault(word.substr(0, equals) + ": " + error->what());
      return;
    }
    Set(word.substr(0, equals), {{value}, false}, source_);
  }

  void Fault(const std::string& message) {
    faults_.push_back(is_base_ ? source_ + ": " + message : message);
  }

  TrainSpec Finish(const std::string& source) {
    CheckWhole();
    if (faults_.empty()) return std::move(spec);
    std::string message = source + ":";
    for (const std::string& fault : faults_) message += "\n  " + fault;
    throw Error(ErrorCode::kInvalidArgument, message);
  }

 private:
  void ReadBase(const YAML::Node& root, const fs::path* file) {
    const YAML::Node given = root[kBaseConfig];
    if (!given || given.IsNull()) return;
    if (file == nullptr || !given.IsScalar()) {
      Fault(std::string(kBaseConfig) +
            (file == nullptr
                 ? ": is only allowed in a spec file, because its path is relative to that file"
                 : ": must be a path"));
      return;
    }
    fs::path base;
    std::string origin;
    const auto bad =
        ExceptionOf<BadValue>([&] { base = Expand(given.as<std::string>(""), &origin); });
    if (bad) {
      Fault(std::string(kBaseConfig) + ": " + bad->what());
      return;
    }
    if (base.empty()) return;
    if (base.is_relative()) base = file->parent_path() / base;
    if (fs::exists(base)) return ReadFile(base);
    if (base.filename() == kMaxTextsBase) {
      spec.notes.push_back(std::string(kBaseConfig) + " has no effect: " + base.string() +
                           " does not exist, so every key keeps its default");
    } else {
      Fault(std::string(kBaseConfig) + ": file " + base.string() + " does not exist");
    }
  }

  void Walk(const YAML::Node& node, const std::string& prefix) {
    for (const auto& entry : node) {
      const std::string name = prefix + entry.first.as<std::string>("");
      const YAML::Node& value = entry.second;
      const int line = entry.first.Mark().line;
      const std::string origin =
          source_ == kCommandLine || line < 0 ? source_ : source_ + ":" + std::to_string(line + 1);
      if (value.IsMap() && FindSpecKey(name) != nullptr) {
        GivenValue given{{}, true};
        for (const auto& item : value) {
          given.words.push_back(item.first.as<std::string>("") + "=" +
                                item.second.as<std::string>(""));
        }
        Set(name, std::move(given), origin);
      } else if (value.IsMap()) {
        Walk(value, name + ".");
      } else if (value.IsNull()) {
        continue;  // "key:" keeps the default
      } else if (value.IsSequence()) {
        GivenValue given{{}, true};
        for (const YAML::Node& item : value) given.words.push_back(item.as<std::string>(""));
        Set(name, std::move(given), origin);
      } else {
        Set(name, {{value.Scalar()}, false}, origin);
      }
    }
  }

  void Set(const std::string& name, GivenValue given, std::string origin) {
    if (name == kBaseConfig && source_ != kCommandLine) return;  // ReadYaml has read it already
    const SpecKey* key = FindSpecKey(name);
    if (key == nullptr) {
      SetForeign(name, given);
      return;
    }
    if (!seen_.insert(key->names[0]).second) {
      Fault(name + ": given twice (also as " + key->names[0] + ")");
      return;
    }
    if (key->names[0] == "lora.enable") {
      says_whether_lora_ = true;
    } else if (key->names[0].starts_with("lora.")) {
      says_which_lora_ = true;
    }
    const auto bad = ExceptionOf<BadValue>([&] {
      for (std::string& word : given.words) word = Expand(word, &origin);
      key->value.set(spec, given);
      spec.origins[key->names[0]] = origin;
    });
    if (bad) Fault(name + ": " + bad->what());
  }

  void SetForeign(const std::string& name, const GivenValue& given) {
    const std::optional<ForeignKey> foreign = FindForeignKey(name);
    if (!foreign) {
      Fault(name + ": unknown key; did you mean " + NearestSpecKey(name) + "?");
    } else if (AcceptsForeignValue(*foreign, given.is_list ? "[]" : given.words[0])) {
      spec.notes.push_back(name + " has no effect: " + foreign->note);
    } else {
      Fault(name + ": is not supported: " + foreign->note);
    }
  }

  // Directory of the file being read.
  std::string SpecDir() const {
    if (files_.empty()) throw BadValue("${SPEC_DIR} is only allowed in a spec file");
    return files_.back().parent_path().string();
  }

  // Index of the "}" that closes the "${" at `begin`, or npos.
  static size_t FindEnd(const std::string& text, size_t begin) {
    int depth = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text.compare(i, 2, "${") == 0) ++depth;
      if (text[i] == '}' && --depth == 0) return i;
    }
    return std::string::npos;
  }

  // Expands ${VAR}, ${VAR:-default} and ${SPEC_DIR}; a default may contain further references.
  // Appends the variables it read to `origin`.
  std::string Expand(const std::string& text, std::string* origin) const {
    std::string out;
    size_t from = 0;
    while (true) {
      const size_t begin = text.find("${", from);
      if (begin == std::string::npos) break;
      const size_t end = FindEnd(text, begin);
      if (end == std::string::npos) throw BadValue("\"${\" has no \"}\"");
      out.append(text, from, begin - from);
      const std::string inside = text.substr(begin + 2, end - begin - 2);
      const size_t split = inside.find(":-");
      const std::string name = inside.substr(0, split);
      if (name == "SPEC_DIR") {
        out += SpecDir();
      } else if (const char* value = std::getenv(name.c_str())) {
        out += value;
        *origin += ", environment variable " + name;
      } else if (split != std::string::npos) {
        out += Expand(inside.substr(split + 2), origin);
      } else {
        throw BadValue("environment variable " + name +
                       " is not set: set it, or give a default with ${" + name + ":-…}");
      }
      from = end + 1;
    }
    return out + text.substr(from);
  }

  // Checks rules that involve more than one key.
  void CheckWhole() {
    if (spec.train.steps <= 0) Fault("train.steps: must be given");
    FindDataSet();
    if (spec.data.synthetic && spec.kind != "train.pretrain") {
      Fault("data.source: synthetic needs kind train.pretrain");
    }
    if (spec.data.synthetic && !spec.data.train.empty()) {
      Fault("data.train: must not be given with data.source synthetic");
    }
    if (spec.data.train.empty() && !spec.data.synthetic) {
      Fault("data.train: must name a file, or set data.source to synthetic");
    }
    if (spec.model.tokenizer_path.empty() && spec.model.load_parameters_path.empty()) {
      Fault("model.tokenizer_path: must be given when load_parameters_path is not");
    }
    const ModelSection& m = spec.model;
    const int64_t kv_heads = m.n_kv_heads == 0 ? m.n_heads : m.n_kv_heads;
    if (m.n_heads % kv_heads != 0) {
      Fault("model.n_kv_heads: " + std::to_string(kv_heads) + " does not divide n_heads " +
            std::to_string(m.n_heads));
    }
    if (m.head_dim == 0 && m.hidden_dim % m.n_heads != 0) {
      Fault("model.n_heads: " + std::to_string(m.n_heads) + " does not divide hidden_dim " +
            std::to_string(m.hidden_dim));
    }
    // Any key that describes an adapter enables it, unless lora.enable is given.
    if (!says_whether_lora_) spec.lora.enable = says_which_lora_;
    if (spec.lora.enable) {
      if (m.load_parameters_path.empty()) {
        Fault("model.load_parameters_path: must be given with lora: the model of the adapter");
      }
      if (!m.trainable.empty()) {
        Fault("model.trainable: must not be set with lora, which trains only its adapter");
      }
      if (m.freeze_router) {
        Fault(
            "model.freeze_router: must not be set with lora: the model's weights are frozen, and "
            "a router has an adapter only if lora.module_path names it");
      }
      if (spec.lora.use_dora && spec.lora.embeddings) {
        Fault(
            "lora.embeddings: must be false with lora.use_dora, which linear layers have only; "
            "lora.modules_to_save trains whole embeddings");
      }
      CheckBaseType();
      CheckLoadPath();
    }
    if (spec.train.remat.policy == RematPolicy::kAuto && spec.train.remat.max_bytes == 0 &&
        spec.resources.memory_max_bytes == 0) {
      Fault("train.remat: auto needs train.remat_max_bytes or resources.memory_max_bytes");
    }
    if (spec.train.remat.seq_chunk % 1024 != 0) {
      Fault("train.seq_chunk: must be a multiple of 1024, got " +
            std::to_string(spec.train.remat.seq_chunk));
    }
    if (spec.train.eval_interval > 0 && spec.data.eval.empty()) {
      Fault("data.eval: must be given when train.eval_interval is set");
    }
    if (spec.train.early_stopping_patience > 0 && spec.train.eval_interval == 0) {
      Fault("train.eval_interval: must be given when train.early_stopping_patience is set");
    }
    CheckLossLibrary();
    for (const std::string& fault : DistillFaults(&spec)) Fault(fault);
    CheckOptimizer();
    CheckOrder();
    const OptimizerSpec& optimizer = spec.train.optimizer;
    if ((optimizer.is_adam() || optimizer.kind == OptimizerKind::kMuon) &&
        static_cast<float>(optimizer.eps) == 0 && static_cast<float>(optimizer.eps_root) == 0) {
      Fault(
          "train.optimizer.eps: must be above 0 if eps_root is 0, or a weight without gradient "
          "becomes NaN");
    }
    NoteIgnoredKeys(&spec);
    CheckPreference();
    CheckSchedule(spec.train.schedule);
    if (spec.data.max_segments_per_seq == 0) spec.data.max_segments_per_seq = 64;
  }

  void CheckOrder() {
    const DataSection& data = spec.data;
    if (data.order == OrderKind::kGrain && data.shuffle_window > 0) {
      Fault("data.shuffle_window: must be 0 with data.order grain");
    }
    if (data.order == OrderKind::kGrain && data.seed > UINT32_MAX) {
      Fault("data.seed: must be at most 4294967295 with data.order grain");
    }
    const size_t n_weights = data.mixture_weights.size();
    const size_t n_paths = PartsOfList(data.train).size();
    if (n_weights > 0 && n_weights != n_paths) {
      Fault("data.mixture_weights: has " + std::to_string(n_weights) +
            " weights, but data.train names " + std::to_string(n_paths) + " paths");
    }
    if (data.loss_mask != LossMask::kAll) return;
    if (spec.is_dpo()) Fault("data.loss_mask: must not be all for train.dpo");
    if (data.packing != Packing::kNone) Fault("data.loss_mask: all needs data.packing none");
  }

  void CheckOptimizer() {
    OptimizerSpec& optimizer = spec.train.optimizer;
    const bool has_codes = optimizer.is_adam() || optimizer.kind == OptimizerKind::kSgd;
    if (optimizer.state == MomentState::k8Bit && !has_codes) {
      Fault("train.optimizer.state: 8bit needs train.optimizer.type adam, adamw or sgd");
    }
    if (optimizer.kind == OptimizerKind::kLion && !spec.origins.contains("train.optimizer.b2")) {
      optimizer.b2 = 0.99;
    }
    if (spec.checkpoint.local_dir.empty() != (spec.checkpoint.local_period == 0)) {
      Fault("checkpoint.local_period: needs checkpoint.local_directory, and the other way round");
    }
    if (spec.checkpoint.export_average && optimizer.ema_decay == 0) {
      Fault("checkpoint.export_ema: needs train.optimizer.ema_decay above 0");
    }
    if (!spec.is_dpo()) return;
    if (spec.train.z_loss > 0)
      Fault("train.z_loss: must be 0 for train.dpo, whose loss is over pairs");
    if (spec.train.neftune_alpha > 0) {
      Fault("train.neftune_noise_alpha: must be 0 for train.dpo, whose reference has no noise");
    }
  }

  // data.hf_path is the default of data.train and data.eval.
  void FindDataSet() {
    DataSection& data = spec.data;
    const auto take = [&](std::filesystem::path* path, const char* key) {
      if (data.hf_path.empty() || !path->empty()) return;
      *path = data.hf_path;
      spec.origins[key] = spec.origins["data.hf_path"];
    };
    take(&data.train, "data.train");
    if (data.eval_split.empty()) return;
    take(&data.eval, "data.eval");
    if (data.eval.empty()) {
      Fault(
          "data.eval: must be given with data.eval_split, or set data.hf_path to the directory of "
          "both splits");
    }
  }

  void CheckLossLibrary() {
    const TrainSection& train = spec.train;
    if (train.loss_library.empty()) {
      if (!train.loss_options.empty()) {
        Fault("train.loss_library: must be given when train.loss_options is set");
      }
      return;
    }
    if (spec.is_dpo()) {
      Fault("train.loss_library: must not be set for train.dpo; dpo.algo selects its loss");
    }
    if (train.z_loss != 0) Fault("train.z_loss: must be 0 with train.loss_library");
  }

  // lora.load_path excludes the keys that the loaded adapter fixes.
  void CheckLoadPath() {
    if (spec.lora.load_path.empty()) return;
    for (const char* key :
         {"lora.rank", "lora.alpha", "lora.rank_stabilized", "lora.module_path", "lora.match",
          "lora.unmatched", "lora.init", "lora.rank_pattern", "lora.alpha_pattern", "lora.use_dora",
          "lora.embeddings", "lora.modules_to_save"}) {
      if (!spec.origins.contains(key)) continue;
      Fault(std::string(key) + ": must not be set with lora.load_path, whose adapter has its own");
    }
  }

  // Refuses keys that conflict with preference pairs.
  void CheckPreference() {
    const bool are_pairs = IsPreference(spec.data.format);
    if (!spec.is_dpo()) {
      if (are_pairs) Fault("data.format: preference rows need kind train.dpo");
      for (const char* key : {"dpo.beta", "dpo.label_smoothing", "dpo.max_prompt_length",
                              "dpo.algo", "dpo.orpo_lambda"}) {
        if (!spec.origins.contains(key)) continue;
        spec.notes.push_back(std::string(key) +
                             " has no effect: it applies to kind train.dpo only");
      }
      return;
    }
    if (spec.data.format != RowFormat::kAuto && !are_pairs) {
      Fault("data.format: must be auto, preference or openai_preference for train.dpo");
    }
    if (spec.data.packing == Packing::kConcatThenSplit) {
      Fault(
          "data.packing: must not be concat_then_split for train.dpo, since it cuts pairs apart; "
          "use best_fit or first_fit");
    }
    if (spec.data.overflow == Overflow::kSplit) {
      Fault(
          "data.overflow: must not be split for train.dpo; use truncate, truncate_left, drop or "
          "error");
    }
    if (spec.data.turns == Turns::kApart) {
      Fault(
          "data.turns: must not be apart for train.dpo, where each side of a pair has one answer");
    }
    if (spec.data.train_on_completion_only == std::optional(false)) {
      Fault(
          "data.train_on_completion_only: must not be false for train.dpo, which compares answers "
          "only");
    }
    if (spec.dpo.loss.label_smoothing > 0 && spec.dpo.loss.algorithm != PairAlgorithm::kDpo) {
      Fault("dpo.label_smoothing: must be 0 with dpo.algo ipo or orpo");
    }
    if (spec.dpo.max_prompt_length >= spec.data.max_target_length) {
      Fault(
          "dpo.max_prompt_length: must be less than data.max_target_length, which covers prompt "
          "and answer");
    }
  }

  void CheckBaseType() {
    const bool wants_f32 = spec.lora.base == LoraBase::kF32;
    if (spec.lora.base == LoraBase::kAuto || wants_f32 == (spec.compute == engine::DType::kF32)) {
      return;
    }
    Fault(
        wants_f32
            ? "lora.base_dtype: f32 weights need precision.compute f32"
            : "lora.base_dtype: bf16, int8 and int4 weights need precision.compute bf16, got f32");
  }

  void CheckSchedule(ScheduleSpec& schedule) {
    if (schedule.schedule_steps == 0) schedule.schedule_steps = spec.train.steps;
    if (schedule.kind != ScheduleKind::kWsd) return;
    const int64_t phases = WarmupSteps(schedule) + DecaySteps(schedule);
    if (phases > schedule.schedule_steps) {
      Fault("train.schedule: warm-up and decay together take " + std::to_string(phases) +
            " steps, more than schedule_steps " + std::to_string(schedule.schedule_steps));
    }
  }

  static constexpr const char* kCommandLine = "command line";

  std::vector<std::string> faults_;
  std::vector<fs::path> files_;  // the files being read: the spec's own, then its bases
  bool is_base_ = false;         // the file being read is a base, not the spec
  std::string source_;
  std::set<std::string> seen_;  // keys of the source being read
  bool says_whether_lora_ = false;
  bool says_which_lora_ = false;
};

}  // namespace

std::string DefaultFreshFamily() { return std::string(engine::DefaultFreshFamily().name); }

TrainSpec ParseTrainSpec(const std::string& text, const std::string& source,
                         std::span<const std::string> overrides) {
  SpecReader reader;
  reader.ReadYaml(text, source, nullptr);
  for (const std::string& word : overrides) reader.ReadOverride(word);
  if (!reader.spec.hub_token.empty()) {
    reader.Fault(
        "hf_access_token: is not allowed here, since requests and pipelines are recorded: set "
        "HF_TOKEN in the environment instead");
  }
  return reader.Finish(source);
}

TrainSpec LoadTrainSpec(const std::filesystem::path& path, std::span<const std::string> overrides) {
  SpecReader reader;
  // An unknown file name that contains "=" is an override: the spec has no file.
  if (path.string().find('=') != std::string::npos && !fs::exists(path)) {
    reader.ReadOverride(path.string());
  } else {
    reader.ReadFile(path);
  }
  for (const std::string& word : overrides) reader.ReadOverride(word);
  return reader.Finish(path.string());
}

}  // namespace tandem::training
