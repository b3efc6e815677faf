#include "convert/convert.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "convert/formats.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/model_dir.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRecordFile = "convert.json";

std::string JobOf(const JobContext& context) { return context.dir.filename().string(); }

// What the target says of where it came from.
std::string RecordText(const ConvertSpec& spec, const JobContext& context) {
  Json record = {{"source", spec.source.filename().string()},
                 {"base", spec.base.filename().string()},
                 {"format", spec.format},
                 {"dtype", spec.dtype}};
  if (!context.dir.empty()) record["job"] = JobOf(context);
  return record.dump(2) + "\n";
}

bool IsDone(const ConvertSpec& spec, const JobContext& context) {
  const fs::path file = spec.target / kRecordFile;
  if (context.dir.empty() || !fs::is_regular_file(file)) return false;
  const Json record = Json::parse(engine::ReadWholeFile(file, 1 << 20), nullptr, false);
  return record.is_object() && record.value("job", "") == JobOf(context);
}

// From what was published, so that it is the same after a restart.
ConvertResult Describe(const ConvertSpec& spec) {
  const engine::ModelDir model = engine::ModelDir::Open(spec.target);
  ConvertResult result;
  result.path = spec.target.filename().string();
  result.format = spec.format;
  int64_t largest = -1;
  for (const std::string& name : model.tensor_names()) {
    const engine::StoredTensor& tensor = *model.FindStored(name);
    result.bytes += static_cast<int64_t>(tensor.bytes().size());
    ++result.tensors;
    if (tensor.view.elements() <= largest) continue;
    largest = tensor.view.elements();
    result.dtype = DTypeName(tensor.view.dtype);
  }
  result.merge_json = model.ReadText("merge.json").value_or("");
  return result;
}

// Percents, each once.
std::function<void(int64_t, int64_t)> Reporter(const JobContext& context) {
  return [&context, last = int64_t{-1}](int64_t done, int64_t total) mutable {
    if (context.stop.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped");
    const int64_t percent = total == 0 ? 100 : 100 * done / total;
    if (!context.report || percent == last) return;
    last = percent;
    context.report({"message", percent, 100, 0,
                    "tensor " + std::to_string(done) + " of " + std::to_string(total)});
  };
}

}  // namespace

std::string ConvertResultJson(const ConvertResult& result) {
  Json out = {{"path", result.path},   {"format", result.format},   {"dtype", result.dtype},
              {"bytes", result.bytes}, {"tensors", result.tensors}, {"seconds", result.seconds}};
  if (!result.merge_json.empty()) {
    out["merge"] = engine::ParseUntrustedJson(result.merge_json, "merge.json");
  }
  return out.dump();
}

ConvertResult Convert(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops) {
  const auto begin = std::chrono::steady_clock::now();
  if (!IsDone(spec, context)) {
    CheckConvertSpec(spec);
    const fs::path parent = spec.target.has_parent_path() ? spec.target.parent_path() : ".";
    engine::RemoveStaleTemporaries(parent, spec.target.filename().string());
    FindFormat(spec.format)
        ->write(spec, {.ops = ops,
                       .cache_dir = context.cache_dir,
                       .record = RecordText(spec, context),
                       .progress = Reporter(context)});
  }
  ConvertResult result = Describe(spec);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace tandem::convert
