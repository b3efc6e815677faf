#include "server/pipeline/kinds.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "convert/formats/check_spec.h"
#include "engine/base/attempt.h"
#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/hub/reference.h"
#include "engine/objects/object_url.h"
#include "training/spec/explain.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Names = const char* const;

constexpr std::array kConvertKeys = {"from",   "base",      "to",          "dtype",  "scan",
                                     "unroll", "verify",    "certificate", "max_kl", "rank",
                                     "alpha",  "overwrite", "out"};
constexpr std::array kConvertNeeds = {"from", "to"};
constexpr std::array kConvertMakes = {"out", "dir"};
constexpr std::array kTrainKeys = {"spec", "out"};
constexpr std::array kTrainMakes = {"out", "model", "adapter", "checkpoint", "dir"};
constexpr std::array kGenerateKeys = {"model",       "prompt", "max_tokens", "dtype",
                                      "temperature", "top_p",  "top_k",      "seed"};
constexpr std::array kGenerateNeeds = {"model", "prompt"};
constexpr std::array kGenerateMakes = {"out", "dir"};
constexpr std::array kEvalKeys = {"model", "data", "adapter", "max_loss"};
constexpr std::array kEvalNeeds = {"model", "data"};
constexpr std::array kEvalMakes = {"dir"};
constexpr std::array kLoadKeys = {"model",         "id",     "alias",      "replace", "dtype",
                                  "max_model_len", "server", "model_root", "chat",    "max_tokens"};
constexpr std::array kLoadNeeds = {"model"};
constexpr std::array kLoadMakes = {"dir"};

constexpr std::array<PipelineKind, 7> kKinds = {{
    {"convert", "convert", kConvertKeys, kConvertNeeds, kConvertMakes},
    {"train.pretrain", "train", kTrainKeys, {}, kTrainMakes, true},
    {"train.sft", "train", kTrainKeys, {}, kTrainMakes, true},
    {"train.dpo", "train", kTrainKeys, {}, kTrainMakes, true},
    {"generate", "generate", kGenerateKeys, kGenerateNeeds, kGenerateMakes},
    {"eval", "eval", kEvalKeys, kEvalNeeds, kEvalMakes, true},
    {"load", nullptr, kLoadKeys, kLoadNeeds, kLoadMakes},
}};

// Builds a job's order and replaces its references.
class Maker {
 public:
  Maker(const PipelineSpec& spec, const PipelineJob& job, const fs::path& dir,
        const PipelineOutputs& outputs, const PathFinder& find, bool are_expected)
      : spec_(spec), job_(job), outputs_(outputs), find_(find), are_expected_(are_expected) {
    order_.places = PlacesOf(job, dir);
    if (!order_.places.job.empty()) order_.outputs["dir"] = order_.places.job.string();
  }

  PipelineOrder Make() {
    const PipelineKind& kind = *FindPipelineKind(job_.kind);
    if (job_.kind == "convert") {
      Convert();
    } else if (job_.kind == "generate") {
      Generate();
    } else if (job_.kind == "eval") {
      Eval(kind);
    } else if (job_.kind == "load") {
      Load();
    } else {
      Train();
    }
    return std::move(order_);
  }

 private:
  Error ErrorIn(const std::string& key, const std::string& what,
                ErrorCode code = ErrorCode::kInvalidArgument) const {
    const PipelineValue* value = job_.Find(key);
    return Error(code, (value == nullptr ? job_.origin : value->origin) + ": jobs." + job_.name +
                           "." + key + ": " + what)
        .WithParam("spec.jobs." + job_.name + "." + key);
  }

  [[noreturn]] void Fail(const std::string& key, const std::string& what) const {
    throw ErrorIn(key, what);
  }

  std::string Replace(const std::string& key, const std::string& text) const {
    const auto in_key = [&](const Error& error) {
      return ErrorIn(key, error.what(), error.code());
    };
    return WithContext(in_key, [&] { return ReplaceReferences(text, outputs_); });
  }

  std::string Text(const std::string& key, const std::string& fallback = "") const {
    return Replace(key, job_.Text(key, fallback));
  }

  bool Bool(const std::string& key, bool fallback) const {
    const std::string text = Text(key, fallback ? "true" : "false");
    if (text != "true" && text != "false") {
      Fail(key, "must be true or false, got " + Quoted(text));
    }
    return text == "true";
  }

  double Number(const std::string& key, double fallback, double min, double max) const {
    if (job_.Find(key) == nullptr) return fallback;
    const std::string text = Text(key);
    double value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc() || end != text.data() + text.size() || !(value >= min) ||
        !(value <= max)) {
      std::ostringstream range;
      range << "must be a number in [" << min << ", " << max << "], got " << Quoted(text);
      Fail(key, range.str());
    }
    return value;
  }
  int64_t Integer(const std::string& key, int64_t fallback, int64_t min, int64_t max) const {
    const double value = Number(key, static_cast<double>(fallback), static_cast<double>(min),
                                static_cast<double>(max));
    if (value != std::floor(value)) Fail(key, "must be a whole number, got " + Quoted(Text(key)));
    return static_cast<int64_t>(value);
  }

  // A model or file that the job reads. Existing paths become absolute; other names belong to the
  // hub or to built-in models.
  std::string Input(const std::string& key) {
    std::string text = Text(key);
    if (text.empty()) return text;
    if (find_.model) text = find_.model(text);
    std::error_code unknown;
    if (fs::exists(text, unknown) || fs::path(text).is_absolute()) {
      text = fs::absolute(text).lexically_normal().string();
    }
    order_.inputs.emplace_back(text);
    return text;
  }

  void Convert() {
    convert::ConvertSpec spec;
    spec.source = fs::absolute(Input("from")).lexically_normal();
    if (job_.Find("base") != nullptr) spec.base = fs::absolute(Input("base")).lexically_normal();
    spec.format = Text("to");
    spec.dtype = Text("dtype");
    spec.overwrite = Bool("overwrite", false);
    spec.verify = Bool("verify", true);
    spec.certificate = Bool("certificate", true);
    if (job_.Find("max_kl") != nullptr) spec.max_kl = Number("max_kl", 0, 0, convert::kMostKl);
    if (job_.Find("rank") != nullptr) spec.peft.rank = Integer("rank", 0, 1, convert::kMostRank);
    spec.peft.alpha = Number("alpha", 0, convert::kLeastAlpha, convert::kMostAlpha);
    spec.layout = Layout();
    spec.target = order_.places.out.empty()
                      ? order_.places.job / convert::TargetName(spec.format, "model")
                      : order_.places.out;
    order_.outputs["out"] = spec.target.string();
    order_.spec_json = order_.identity = convert::ConvertSpecJson(spec);
    if (!are_expected_) return;  // the process checks again, and knows which files are its own
    const auto error = ErrorOf([&] { convert::CheckConvertSpec(spec); });
    if (!error) return;
    const std::string& param = error->param();
    if (IsReferenced("from", "base") && !param.starts_with("target.")) return;
    // A model of the hub that is not downloaded yet.
    if (error->code() == ErrorCode::kNotFound && find_.model &&
        (engine::ParseHubReference(Text("from")) || engine::IsObjectUrl(Text("from")))) {
      return;
    }
    // The job's own output, or an error at run time.
    if (error->code() == ErrorCode::kAlreadyExists) return;
    throw ErrorIn(param == "target.layout"   ? (Bool("scan", false) ? "scan" : "unroll")
                  : param == "target.dtype"  ? "dtype"
                  : param == "target.format" ? "to"
                  : param == "target.rank"   ? "rank"
                  : param == "target.alpha"  ? "alpha"
                  : param == "source.base"   ? "base"
                                             : "from",
                  error->what(), error->code());
  }

  std::string Layout() const {
    const bool scan = Bool("scan", false);
    const bool unroll = Bool("unroll", false);
    if (scan && unroll) Fail("unroll", "excludes scan: set one of them");
    return scan ? "scanned" : unroll ? "unscanned" : "";
  }

  // The checks skip a file that another job has yet to write.
  template <class... Keys>
  bool IsReferenced(Keys... keys) const {
    return ((job_.Text(keys).find("${jobs.") != std::string::npos) || ...);
  }

  // The job's own keys that belong to a training spec.
  Json TrainingKeys(const PipelineKind& kind) const {
    Json keys = Json::object();
    for (const auto& [key, value] : job_.keys) {
      if (std::any_of(kind.keys.begin(), kind.keys.end(),
                      [&, &name = key](const char* own) { return name == own; })) {
        continue;
      }
      if (key == "run_name" || key == "base_output_directory" || key == "base_config") {
        Fail(key, key == "base_config" ? "is not allowed in a job: use `spec` instead"
                                       : "is not allowed in a job: use `out` instead");
      }
      std::vector<std::string> words;
      for (const std::string& word : value.words) {
        words.push_back(Replace(key, word));
      }
      keys[key] = value.is_list ? Json(words) : Json(words[0]);
    }
    return keys;
  }

  fs::path TrainingFile() const {
    const std::string text = Text("spec");
    if (text.empty()) return {};
    const fs::path path = fs::path(text).is_relative() ? spec_.spec_dir / text : fs::path(text);
    if (!fs::is_regular_file(path)) {
      Fail("spec", "file " + path.string() + " does not exist (relative to " + spec_.source + ")");
    }
    return fs::absolute(path).lexically_normal();
  }

  training::TrainSpec ParseTraining(const fs::path& file, const Json& keys,
                                    std::vector<std::string> words) const {
    const auto in_this_job = [&](const Error& error) {
      return Error(error.code(), job_.origin + ": jobs." + job_.name + ": " + error.what())
          .WithParam("spec.jobs." + job_.name);
    };
    return WithContext(in_this_job, [&] {
      if (file.empty()) return training::ParseTrainSpec(keys.dump(), "its keys", words);
      for (const auto& [key, value] : keys.items()) {
        words.push_back(key + "=" + (value.is_array() ? value.dump() : value.get<std::string>()));
      }
      return training::LoadTrainSpec(file, words);
    });
  }

  void Train() {
    const PipelineKind& kind = *FindPipelineKind(job_.kind);
    const fs::path file = TrainingFile();
    Json keys = {{"kind", job_.kind}};
    keys.update(TrainingKeys(kind));
    if (const auto token = keys.find("hf_access_token"); token != keys.end() && *token != "") {
      Fail("hf_access_token",
           "is not allowed, since a pipeline is recorded: set HF_TOKEN in the environment instead");
    }
    training::TrainSpec spec = ParseTraining(file, keys, {});
    order_.identity = Identity(spec);
    AddInputs(spec);
    if (!are_expected_ && find_.training) FindTrainingPaths(spec, keys);
    Json all = Json::object();
    if (!file.empty()) all["base_config"] = file.string();
    all.update(keys);
    order_.spec_json = all.dump(2);

    const fs::path& dir = order_.places.job;
    const bool makes_model =
        spec.lora.enable ? spec.lora.export_merged : spec.checkpoint.export_model;
    if (makes_model) order_.outputs["model"] = (dir / "hf").string();
    if (spec.lora.enable) order_.outputs["adapter"] = (dir / "adapter").string();
    if (makes_model || spec.lora.enable) {
      order_.outputs["out"] = order_.outputs[makes_model ? "model" : "adapter"];
    }
    order_.outputs["checkpoint"] = (dir / "checkpoints" / "LAST").string();
  }

  // Replaces names of the hub in `spec` by local paths, and records the paths in `keys`.
  void FindTrainingPaths(training::TrainSpec& spec, Json& keys) const {
    const training::TrainSpec before = spec;
    find_.training(spec);
    const auto note = [&](const char* key, const fs::path& was, const fs::path& is) {
      if (is == was) return;
      for (const training::SpecPath& one : training::PathsOf(before)) {
        if (one.names.front() != key) continue;
        for (const std::string& name : one.names) keys.erase(name);
      }
      keys[key] = is.string();
    };
    note("model.load_parameters_path", before.model.load_parameters_path,
         spec.model.load_parameters_path);
    note("model.tokenizer_path", before.model.tokenizer_path, spec.model.tokenizer_path);
    note("data.train", before.data.train, spec.data.train);
    note("data.eval", before.data.eval, spec.data.eval);
  }

  // All values without their origin. `resources.*` is left out because it never changes the result.
  static std::string Identity(const training::TrainSpec& spec) {
    std::istringstream lines(training::ShowSpec(spec));
    std::string identity;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("resources.") || line.starts_with("#") ||
          line.starts_with("run_name:") || line.starts_with("base_output_directory:")) {
        continue;
      }
      identity += line.substr(0, line.rfind("  # ")) + "\n";
    }
    return identity;
  }

  void AddInputs(const training::TrainSpec& spec) {
    for (const training::SpecPath& one : training::PathsOf(spec)) {
      std::istringstream paths(one.path);
      for (std::string path; std::getline(paths, path, ';');) {
        if (!path.empty()) order_.inputs.emplace_back(path);
      }
    }
  }

  void Generate() {
    Json order = {{"model", Input("model")},
                  {"prompt", Text("prompt")},
                  {"max_tokens", Integer("max_tokens", 64, 1, int64_t{1} << 30)},
                  {"temperature", Number("temperature", 0, 0, 2)},
                  {"top_p", Number("top_p", 1, 0, 1)},
                  {"top_k", Integer("top_k", 0, 0, int64_t{1} << 30)},
                  {"seed", Integer("seed", 0, 0, int64_t{1} << 53)},
                  {"dtype", Text("dtype", "auto")}};
    order_.spec_json = order_.identity = order.dump(2);
    order_.outputs["out"] = (order_.places.job / "text.txt").string();
  }

  void Eval(const PipelineKind& kind) {
    const Json keys = TrainingKeys(kind);
    Json words = Json::array();
    for (const auto& [key, value] : keys.items()) {
      words.push_back(key + "=" + (value.is_array() ? value.dump() : value.get<std::string>()));
    }
    Json order = {{"model", Input("model")},
                  {"data", Input("data")},
                  {"adapter", Input("adapter")},
                  {"words", words}};
    if (job_.Find("max_loss") != nullptr) order["max_loss"] = Number("max_loss", 0, 0, 1e9);
    std::vector<std::string> base = {
        "model.load_parameters_path=" + order["model"].get<std::string>(),
        "data.train=" + order["data"].get<std::string>(), "train.steps=1"};
    order_.identity = Identity(ParseTraining({}, Json::object(),
                                             [&] {
                                               for (const Json& word : words)
                                                 base.push_back(word.get<std::string>());
                                               return base;
                                             }())) +
                      order.dump();
    order_.spec_json = order.dump(2);
  }

  void Load() {
    Json order = {{"model", Input("model")},
                  {"id", Text("id", spec_.name)},
                  {"alias", Text("alias")},
                  {"replace", Bool("replace", false)},
                  {"dtype", Text("dtype")},
                  {"max_model_len", Integer("max_model_len", 0, 0, int64_t{1} << 30)},
                  {"server", Text("server", "http://127.0.0.1:8080")},
                  {"model_root", Text("model_root", ".")},
                  {"chat", Text("chat")},
                  {"max_tokens", Integer("max_tokens", 64, 1, int64_t{1} << 30)}};
    order_.spec_json = order_.identity = order.dump(2);
  }

  const PipelineSpec& spec_;
  const PipelineJob& job_;
  const PipelineOutputs& outputs_;
  const PathFinder& find_;
  const bool are_expected_;
  PipelineOrder order_;
};

}  // namespace

const PipelineKind* FindPipelineKind(std::string_view name) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const PipelineKind& one) { return name == one.name; });
  return kind == kKinds.end() ? nullptr : &*kind;
}

std::string PipelineKindNames() {
  std::string names;
  for (const PipelineKind& kind : kKinds) names.append(names.empty() ? "" : ", ").append(kind.name);
  return names;
}

std::string NearestName(std::string_view name, std::span<Names> known) {
  const auto nearest = std::min_element(known.begin(), known.end(), [&](Names a, Names b) {
    return EditDistance(name, a) < EditDistance(name, b);
  });
  return nearest == known.end() ? "" : *nearest;
}

PipelinePlaces PlacesOf(const PipelineJob& job, const fs::path& pipeline_dir) {
  PipelinePlaces places;
  places.job = pipeline_dir / "jobs" / job.name;
  const std::string out = job.Text("out");
  if (out.empty()) return places;
  const fs::path path = fs::absolute(out).lexically_normal();
  // "out/" and "out" name the same directory, but only "out" has a file name.
  const fs::path named = path.has_filename() ? path : path.parent_path();
  // A training run uses one directory for its checkpoints and its process's files.
  (job.kind == "convert" ? places.out : places.job) = named;
  return places;
}

PipelineOrder MakeOrder(const PipelineSpec& spec, const PipelineJob& job,
                        const fs::path& pipeline_dir, const PipelineOutputs& outputs,
                        const PathFinder& find, bool are_expected) {
  return Maker(spec, job, pipeline_dir, outputs, find, are_expected).Make();
}

std::map<std::string, std::string> OutputsOf(const PipelineJob& job, const PipelineOrder& order,
                                             const std::string& result_json) {
  std::map<std::string, std::string> outputs = order.outputs;
  if (!job.kind.starts_with("train.")) return outputs;
  // Only the run's own result says what it exported and which checkpoint is the last.
  const Json result = Json::parse(result_json, nullptr, false);
  const auto said = [&](const char* name) {
    return result.is_object() && result.contains(name) && result[name].is_string()
               ? result[name].get<std::string>()
               : std::string();
  };
  outputs.clear();
  outputs["dir"] = order.places.job.string();
  const auto set = [&](const char* what, const std::string& path) {
    if (!path.empty()) outputs[what] = fs::absolute(path).lexically_normal().string();
  };
  set("checkpoint", said("checkpoint"));
  set("adapter", said("adapter_dir"));
  set("out", said("adapter_dir"));
  set("model", said("model_dir"));
  set("out", said("model_dir"));
  return outputs;
}

}  // namespace tandem::server
