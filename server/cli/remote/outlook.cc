#include "server/cli/remote/outlook.h"

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/app_config.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/memory_ledger.h"
#include "engine/base/thread_pool.h"
#include "engine/hub/describe.h"
#include "engine/hub/pull.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/model/weightless_model.h"
#include "engine/ops/matmul_speed.h"
#include "server/cli/remote/table.h"
#include "server/models/load_model.h"
#include "server/models/model_outlook.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kSecondsPerMeasurement = 0.06;
constexpr size_t kMostConfigBytes = 16 << 20;

// A model to look at: on this machine, or described without its weights.
struct LookedUpModel {
  std::optional<OpenedModel> opened;
  std::optional<engine::WeightlessModel> described;

  const engine::ModelDir& dir() const { return opened ? opened->files : described->dir(); }
};

bool IsConfigAlone(const fs::path& path) {
  if (fs::is_regular_file(path)) return path.extension() == ".json";
  if (!fs::is_directory(path) || !fs::exists(path / "config.json")) return false;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".index.json") || name == "manifest.json")
      return false;
  }
  return true;
}

// Whether all files are in the cache, or no others can be had.
bool IsPulled(const engine::HubReference& reference) {
  const engine::HubOptions options = engine::HubOptionsFromEnvironment();
  if (options.offline) return true;
  return !ErrorOf([&] { engine::FindPulledModel(reference, options); });
}

LookedUpModel LookUp(const std::string& model) {
  const fs::path path(model);
  if (IsConfigAlone(path)) {
    const fs::path file = fs::is_directory(path) ? path / "config.json" : path;
    return {{},
            engine::WeightlessModel::FromConfig(
                file.parent_path().empty() ? "." : file.parent_path().string(),
                engine::ReadWholeFile(file, kMostConfigBytes))};
  }
  const auto reference = fs::exists(path) ? std::nullopt : engine::ParseHubReference(model);
  if (!reference || IsPulled(*reference)) {
    return {OpenModelArgument({.name = {}, .path = model, .may_pull = true}), {}};
  }
  std::vector<engine::WeightlessModel::File> files;
  for (engine::RemoteFile& file :
       engine::DescribeHubModel(*reference, engine::HubOptionsFromEnvironment())) {
    files.push_back({std::move(file.name), std::move(file.head), file.bytes});
  }
  return {{}, engine::WeightlessModel::FromFiles(reference->Text(), files)};
}

FormatSpeed MeasureNow(engine::OpsContext& ops, const std::string& format) {
  auto dtype = format == "f32" ? engine::DType::kF32 : engine::DType::kBF16;
  auto block = engine::BlockFormat::kNone;
  for (const engine::BlockFormat candidate : engine::kBlockFormats) {
    if (format == engine::BlockFormatName(candidate)) block = candidate;
  }
  const engine::MatMulSpeed speed =
      engine::MeasureMatMul(ops, dtype, block, kSecondsPerMeasurement);
  return {speed.bytes_per_second, speed.flops};
}

std::string NumberText(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Limits are those of rounding, so that no text begins with 1000.
std::string CountText(int64_t parameters) {
  const auto value = static_cast<double>(parameters);
  if (value >= 999.95e6) return NumberText("%.2f billion", value / 1e9);
  if (value >= 999.95e3) return NumberText("%.1f million", value / 1e6);
  return value >= 1e3 ? NumberText("%.1f thousand", value / 1e3) : NumberText("%.0f", value);
}

std::string RateText(double per_second) {
  return NumberText(per_second >= 100 ? "%.0f" : per_second >= 10 ? "%.1f" : "%.2f", per_second);
}

std::string FitsText(const DTypeOutlook& dtype) {
  if (dtype.fitting_context == 0) return "no";
  if (dtype.fitting_context == dtype.plan.max_model_len) return "yes";
  return "to " + std::to_string(dtype.fitting_context) + " tokens";
}

Json DTypeJson(const DTypeOutlook& dtype) {
  return {{"dtype", dtype.dtype},
          {"is_default", dtype.is_default},
          {"weight_bytes", dtype.plan.least.weights},
          {"read_bytes_per_token", dtype.read_bytes},
          {"kv_bytes_per_1k_tokens", dtype.kv_1k_bytes},
          {"max_model_len", dtype.plan.max_model_len},
          {"memory_bytes", dtype.plan.least.total()},
          {"fits", dtype.fitting_context == dtype.plan.max_model_len},
          {"fitting_context", dtype.fitting_context},
          {"estimated_decode_tokens_per_second", dtype.decode_tokens_per_second},
          {"estimated_prefill_tokens_per_second", dtype.prefill_tokens_per_second}};
}

void PrintOutlookJson(const OutlookFlags& flags, const LookedUpModel& model,
                      const ModelOutlook& outlook, int n_threads) {
  const engine::MemoryPlan& plan = outlook.dtypes.front().plan;
  Json json{{"object", "model.outlook"},
            {"model", flags.model},
            {"family", outlook.family},
            {"architecture", outlook.architecture},
            {"format", plan.format},
            {"tensors", outlook.n_tensors},
            {"parameters", plan.parameters},
            {"active_parameters", plan.active_parameters},
            {"context", outlook.max_context_len},
            {"download_bytes", nullptr},
            {"memory_budget_bytes", outlook.memory_bytes},
            {"threads", n_threads},
            {"measured", Json::object()},
            {"dtypes", Json::array()}};
  if (model.described && !model.described->is_quantised()) {
    json["download_bytes"] = model.described->weight_file_bytes();
  }
  for (const auto& [format, speed] : outlook.speeds) {
    json["measured"][format] = {{"weight_bytes_per_second", speed.bytes_per_second},
                                {"flops", speed.flops}};
  }
  for (const DTypeOutlook& dtype : outlook.dtypes) json["dtypes"].push_back(DTypeJson(dtype));
  PrintJson(json);
}

void PrintOutlookTable(const OutlookFlags& flags, const LookedUpModel& model,
                       const ModelOutlook& outlook, int n_threads) {
  const engine::MemoryPlan& plan = outlook.dtypes.front().plan;
  std::string about = CountText(plan.parameters) + " parameters";
  if (plan.active_parameters < plan.parameters) {
    about += ", " + CountText(plan.active_parameters) + " for a token";
  }
  about += " in " + std::to_string(outlook.n_tensors) + " tensors; context of " +
           std::to_string(outlook.max_context_len) + " tokens";
  if (model.described && !model.described->is_quantised()) {
    about += "; files of " + BytesText(static_cast<int64_t>(model.described->weight_file_bytes()));
  }
  std::printf("%s: %s (%s)\n%s\n\n", VisibleLine(flags.model, 200).c_str(), outlook.models.c_str(),
              outlook.architecture.c_str(), about.c_str());
  TextTable table({"DTYPE", "WEIGHTS", "READ/TOKEN", "KV/1K TOKENS", "MEMORY", "FITS", "TOKENS/S",
                   "PROMPT TOKENS/S"});
  for (const DTypeOutlook& dtype : outlook.dtypes) {
    table.Add({dtype.dtype + (dtype.is_default ? " (default)" : ""),
               BytesText(dtype.plan.least.weights), BytesText(dtype.read_bytes),
               BytesText(dtype.kv_1k_bytes), BytesText(dtype.plan.least.total()), FitsText(dtype),
               RateText(dtype.decode_tokens_per_second),
               RateText(dtype.prefill_tokens_per_second)});
  }
  table.Print();
  std::printf("\nmeasured now, %d threads: ", n_threads);
  const char* separator = "";
  for (const auto& [format, speed] : outlook.speeds) {
    std::printf("%s%s %.1f GB/s, %.0f GFLOP/s", separator, format.c_str(),
                speed.bytes_per_second / 1e9, speed.flops / 1e9);
    separator = "; ";
  }
  std::printf(
      "\nestimated: tokens/s of one stream and of a long prompt, from these speeds and the weights "
      "alone\nmemory: weights, scratch and one sequence of the whole context, of %s for models\n",
      BytesText(outlook.memory_bytes).c_str());
  if (model.described && model.described->is_quantised()) {
    std::printf(
        "config.json names quantised weights; their own type is known from the files only\n");
  }
}

}  // namespace

void PrintOutlook(const OutlookFlags& flags) {
  OutlookOptions options;
  options.max_model_len = flags.max_model_len;
  if (!flags.memory.empty()) options.memory_bytes = config::ParseBytes(flags.memory, "--memory");
  const LookedUpModel model = LookUp(flags.model);
  options.has_default = !model.described || !model.described->is_quantised();
  ThreadPool pool(flags.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  const ModelOutlook outlook = MakeOutlook(
      model.dir(), options, [&](const std::string& format) { return MeasureNow(ops, format); });
  if (flags.is_json) {
    PrintOutlookJson(flags, model, outlook, pool.n_threads());
  } else {
    PrintOutlookTable(flags, model, outlook, pool.n_threads());
  }
}

}  // namespace tandem::server
