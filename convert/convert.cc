#include "convert/convert.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "convert/certificate.h"
#include "convert/formats.h"
#include "convert/model_texts.h"
#include "convert/provenance.h"
#include "convert/record.h"
#include "convert/source.h"
#include "convert/work_dir.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/model_dir.h"
#include "engine/io/posix_file.h"
#include "engine/model/merge_adapter.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kMergeFile = "merge.json";
constexpr size_t kMaxRecordBytes = 1 << 20;

std::string JobOf(const JobContext& context) { return context.dir.filename().string(); }

const Format& FormatOf(const ConvertSpec& spec) { return *FindFormat(spec.format); }

fs::path RecordOf(const ConvertSpec& spec) {
  if (!FormatOf(spec).IsFile()) return spec.target / kRecordFile;
  return RecordBeside(spec.target);
}

uint64_t InodeOf(const fs::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

Json ReadRecord(const ConvertSpec& spec) {
  const fs::path file = RecordOf(spec);
  if (!fs::is_regular_file(file)) return Json::object();
  const Json record = Json::parse(engine::ReadWholeFile(file, kMaxRecordBytes), nullptr, false);
  return record.is_object() ? record : Json::object();
}

bool IsDone(const ConvertSpec& spec, const JobContext& context) {
  if (context.dir.empty() || FindFormat(spec.format) == nullptr) return false;
  const Json record = ReadRecord(spec);
  if (record.value("job", Json()) != JobOf(context)) return false;
  return !FormatOf(spec).IsFile() || record.value("inode", Json()) == InodeOf(spec.target);
}

// From what was published, so that it is the same after a restart.
ConvertResult Describe(const ConvertSpec& spec) {
  ConvertResult result;
  result.path = spec.target.filename().string();
  result.format = FormatOf(spec).name;
  const Json record = ReadRecord(spec);
  if (record.contains("certificate")) result.certificate_json = record["certificate"].dump();
  int64_t largest = -1;
  const auto add = [&](const engine::ConstTensorView& view, int64_t bytes) {
    result.bytes += bytes;
    ++result.tensors;
    if (view.elements() <= largest) return;
    largest = view.elements();
    result.dtype = DTypeName(view.dtype);
  };
  if (FormatOf(spec).IsFile()) {  // blocks of integers are told as what they decode to
    const engine::ModelDir model = engine::ModelDir::Open(spec.target);
    for (const std::string& name : model.tensor_names()) {
      const engine::StoredTensor& tensor = *model.FindStored(name);
      add(tensor.view, static_cast<int64_t>(tensor.bytes().size()));
    }
    if (!spec.dtype.empty()) result.dtype = spec.dtype;
    if (record.contains("merge")) result.merge_json = record["merge"].dump();
    return result;
  }
  const auto written = FormatOf(spec).open(spec, spec.target);
  for (const engine::NamedTensor& tensor : written->tensors()) {
    add(tensor.view, static_cast<int64_t>(tensor.view.bytes()));
  }
  const fs::path merge = spec.target / kMergeFile;
  if (fs::exists(merge)) result.merge_json = engine::ReadWholeFile(merge, kMaxRecordBytes);
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
void Compare(const ConvertSpec& /*spec*/, const ModelSource& source, const ModelSource& written,
             const std::function<void(int64_t bytes)>& advance) {
  std::vector<std::byte> wanted_buffer, is_buffer;
  for (int64_t i = 0; i < static_cast<int64_t>(source.tensors().size()); ++i) {
    const engine::NamedTensor& tensor = source.tensors()[static_cast<size_t>(i)];
    advance(static_cast<int64_t>(tensor.view.bytes()));
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

void Write(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops,
           const WorkDir& work) {
  const Format& format = FormatOf(spec);
  ConvertSpec read = spec;
  const bool merges = FormOf(spec.source, "source").kind == SourceKind::kAdapter;
  if (merges) {
    read.source = work.path() / "merged";
    Merge(spec, context, ops, read.source);
    if (spec.format == "hf") return fs::rename(read.source, work.out());
  }
  const auto source =
      OpenSource(read, format.casts_source ? FloatTypeOf(spec.dtype) : std::nullopt);
  Reporter reporter(context, (spec.verify ? 2 : 1) * source->bytes());
  const auto advance = [&](int64_t bytes) { reporter.Advance(bytes); };
  if (!format.IsFile()) fs::create_directory(work.out());
  format.write(spec, {.source = *source, .target = work.out(), .ops = ops, .advance = advance});
  if (spec.verify) {
    const auto written = format.open(spec, work.out());
    (format.compare != nullptr ? format.compare : Compare)(spec, *source, *written, advance);
  }
  if (!merges) return;
  fs::rename(read.source / kMergeFile, (format.IsFile() ? work.path() : work.out()) / kMergeFile);
}

// Runs what was written, and gives the text of its record.
std::string Certified(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops,
                      const WorkDir& work) {
  Reporter reporter(context);
  const auto progress = [&] { reporter.Reach(1, 1, "comparing logits"); };
  const Certificate certificate = Certify(
      spec, work.out(),
      {.work_dir = work.path(), .cache_dir = context.cache_dir, .progress = progress, .ops = ops});
  RecordContext record{.job = JobOf(context), .cache_dir = context.cache_dir, .progress = progress};
  // A record beside a file is written before the file has its name, so it says which file it is of.
  if (FormatOf(spec).IsFile()) record.inode = InodeOf(work.out());
  for (const fs::path& merge : {work.path() / kMergeFile, work.out() / kMergeFile}) {
    if (fs::exists(merge)) record.merge_json = engine::ReadWholeFile(merge, kMaxRecordBytes);
  }
  return RecordText(spec, work.out(), certificate, record);
}

void Make(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops) {
  CheckConvertSpec(spec);
  const fs::path parent = engine::ParentOf(spec.target);
  for (const fs::path& name : {spec.target.filename(), RecordOf(spec).filename()}) {
    engine::RemoveStaleTemporaries(parent, name.string());
  }
  WorkDir work(spec.target);
  work.Begin(ConvertSpecJson(spec));
  Write(spec, context, ops, work);
  const std::string text = Certified(spec, context, ops, work);
  const fs::path record = FormatOf(spec).IsFile() ? RecordOf(spec) : work.out() / kRecordFile;
  engine::WriteFileAtomically(record, text);
  work.Publish(spec.overwrite ? engine::IfThere::kReplace : engine::IfThere::kRefuse);
}

}  // namespace

std::string ConvertResultJson(const ConvertResult& result) {
  Json out = {{"path", result.path},   {"format", result.format},   {"dtype", result.dtype},
              {"bytes", result.bytes}, {"tensors", result.tensors}, {"seconds", result.seconds}};
  if (!result.merge_json.empty()) {
    out["merge"] = engine::ParseUntrustedJson(result.merge_json, "merge.json");
  }
  if (!result.certificate_json.empty()) {
    out["certificate"] = engine::ParseUntrustedJson(result.certificate_json, kRecordFile);
  }
  return out.dump();
}

ConvertResult Convert(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops) {
  const auto begin = std::chrono::steady_clock::now();
  if (!IsDone(spec, context)) Make(spec, context, ops);
  ConvertResult result = Describe(spec);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace tandem::convert
