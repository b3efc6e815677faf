#include "convert/convert.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "convert/formats.h"
#include "convert/model_texts.h"
#include "convert/source.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/model_dir.h"
#include "engine/model/merge_adapter.h"
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

// Percents, each once, and whether to go on.
class Reporter {
 public:
  explicit Reporter(const JobContext& context, int64_t total = 0)
      : context_(context), total_(total) {}

  void Advance(int64_t bytes) {
    Reach(done_, total_,
          std::to_string(done_ >> 20) + " of " + std::to_string(total_ >> 20) + " MiB");
    done_ += bytes;
  }
  void Reach(int64_t done, int64_t total, const std::string& what) {
    if (context_.stop.stop_requested()) throw Error(ErrorCode::kCancelled, "stopped");
    const int64_t percent = total == 0 ? 100 : 100 * done / total;
    if (!context_.report || percent == last_) return;
    last_ = percent;
    context_.report({"message", percent, 100, 0, what});
  }

 private:
  const JobContext& context_;
  int64_t total_;  // bytes
  int64_t done_ = 0;
  int64_t last_ = -1;
};

// Tensor by tensor, bit for bit.
void Compare(const ModelSource& source, const ModelSource& written, Reporter& reporter) {
  std::vector<std::byte> wanted_buffer, is_buffer;
  for (int64_t i = 0; i < static_cast<int64_t>(source.tensors().size()); ++i) {
    const engine::NamedTensor& tensor = source.tensors()[static_cast<size_t>(i)];
    reporter.Advance(static_cast<int64_t>(tensor.view.bytes()));
    const int64_t at = written.Find(tensor.name);
    bool same = at >= 0;
    if (same) {
      const engine::ConstTensorView& is = written.tensors()[static_cast<size_t>(at)].view;
      const ModelSource::Bytes wanted = source.Read(i, &wanted_buffer);
      same = is.dtype == tensor.view.dtype && is.shape == tensor.view.shape &&
             std::ranges::equal(wanted, written.Read(at, &is_buffer));
      written.LetGo(at);
      source.LetGo(i);
    }
    if (same) continue;
    throw Error(ErrorCode::kDataLoss, source.name() + ": tensor " + Quoted(tensor.name) +
                                          " is not what was written; nothing is kept");
  }
}

// Merged weights are always compared, by what the model says: there is nothing else to hold them
// to.
void Merge(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops,
           const fs::path& dir) {
  const engine::ModelDir base = engine::ModelDir::Open(spec.base);
  Reporter reporter(context);
  const engine::MergeOptions options{
      .texts = TextsOf(*OpenModelFiles(spec.base, {}), {}),
      .cache_dir = context.cache_dir,
      .dtype = FloatTypeOf(spec.dtype),
      .progress = [&](int64_t done, int64_t total) {
        reporter.Reach(done, total,
                       "tensor " + std::to_string(done) + " of " + std::to_string(total));
      }};
  engine::MergeAdapter(base, engine::LoraAdapter::Open(spec.source), options, dir, ops);
}

void MoveUp(const fs::path& from, const fs::path& to) {
  for (const auto& entry : fs::directory_iterator(from)) {
    fs::rename(entry.path(), to / entry.path().filename());
  }
  fs::remove(from);
}

void Write(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops,
           const fs::path& dir) {
  const Format& format = *FindFormat(spec.format);
  fs::path from = spec.source;
  const fs::path merged = dir / "merged";
  if (SniffSource(spec.source, "source") == SourceKind::kAdapter) {
    Merge(spec, context, ops, merged);
    from = merged;
  }
  if (from == merged && spec.format == "hf") return MoveUp(merged, dir);
  const auto source =
      OpenModelFiles(from, format.casts_source ? FloatTypeOf(spec.dtype) : std::nullopt);
  Reporter reporter(context, (spec.verify ? 2 : 1) * source->bytes());
  format.write(spec, {.source = *source, .dir = dir, .ops = ops, .advance = [&](int64_t bytes) {
                        reporter.Advance(bytes);
                      }});
  if (spec.verify) Compare(*source, *format.open(spec, dir), reporter);
  if (from == merged) {
    fs::rename(merged / "merge.json", dir / "merge.json");
    fs::remove_all(merged);
  }
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
    engine::PublishDirectory(
        spec.target,
        [&](const fs::path& temporary) {
          Write(spec, context, ops, temporary);
          engine::WriteFileAtomically(temporary / kRecordFile, RecordText(spec, context));
        },
        spec.overwrite ? engine::IfThere::kReplace : engine::IfThere::kRefuse);
  }
  ConvertResult result = Describe(spec);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace tandem::convert
