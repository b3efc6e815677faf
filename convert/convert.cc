#include "convert/convert.h"

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "convert/formats/check_spec.h"
#include "convert/formats/formats.h"
#include "convert/sources/source.h"
#include "convert/sources/tensor_source_open.h"
#include "convert/tensors/model_texts.h"
#include "convert/tensors/source_config.h"
#include "convert/verify/certificate.h"
#include "convert/verify/record.h"
#include "convert/work/identity.h"
#include "convert/work/journal.h"
#include "convert/work/pieces.h"
#include "convert/work/progress.h"
#include "convert/work/provenance.h"
#include "convert/work/work_dir.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/base/thread_group.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/io/disk_error.h"
#include "engine/io/json.h"
#include "engine/io/posix_file.h"
#include "engine/model/stored_head.h"
#include "engine/tensor/dtype.h"
#include "engine/tools/merge_adapter.h"

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

// Reads the published target, so that the result is the same after a restart.
ConvertResult Describe(const ConvertSpec& spec) {
  ConvertResult result;
  result.path = spec.target.filename().string();
  result.format = FormatOf(spec).name;
  const Json record = ReadRecord(spec);
  if (record.contains("certificate")) result.certificate_json = record["certificate"].dump();
  if (record.contains(result.format)) {
    Json report = record[result.format];
    report.erase("tensors");  // long, one entry per tensor; stays in the record
    result.report_json = report.dump();
  }
  int64_t largest = -1;
  const auto add = [&](const engine::ConstTensorView& view, int64_t bytes) {
    result.bytes += bytes;
    ++result.tensors;
    if (view.elements() <= largest) return;
    largest = view.elements();
    result.dtype = DTypeName(view.dtype);
  };
  if (FormatOf(spec).IsFile()) {  // a source would give the decoded dtype of quantised blocks
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

// Compares a piece of a tensor that begins at byte `from`. `written` is mapped.
bool IsSame(const engine::NamedTensor& tensor, int64_t from, ModelSource::Bytes wanted,
            const ModelSource& source, const ModelSource& written, const ThreadGroup& group) {
  const int64_t at = written.Find(tensor.name);
  if (at < 0) return false;
  const engine::ConstTensorView& is = written.tensors()[static_cast<size_t>(at)].view;
  if (is.dtype != tensor.view.dtype || is.shape != tensor.view.shape) return false;
  std::vector<std::byte> buffer;
  const ModelSource::Bytes bytes =
      written.Read(at, &buffer).subspan(static_cast<size_t>(from), wanted.size());
  bool same = true;
  InPieces(source, wanted, group, [&](ModelSource::Bytes piece, size_t offset) {
    const ModelSource::Bytes there = bytes.subspan(offset, piece.size());
    MapAtOnce(there);
    same = same && (piece.empty() || std::memcmp(piece.data(), there.data(), piece.size()) == 0);
    written.LetGoOf(there);
  });
  return same;
}

// Compares all tensors bit for bit.
void Compare(const ModelSource& source, const ModelSource& written, int n_threads,
             const std::function<void(int64_t bytes)>& advance) {
  if (source.tensors().size() != written.tensors().size()) {
    throw Error(ErrorCode::kDataLoss,
                source.name() + ": the source has " + std::to_string(source.tensors().size()) +
                    " tensors, but the target has " + std::to_string(written.tensors().size()));
  }
  std::atomic<int64_t> compared{0};
  std::vector<int64_t> parts(static_cast<size_t>(source.parts()));
  std::iota(parts.begin(), parts.end(), int64_t{0});
  BudgetedQueue queue(std::move(parts), [&](int64_t part) { return source.PartMemory(part); });
  ThreadGroup group;
  const auto compare = [&](const engine::NamedTensor& tensor, int64_t from,
                           ModelSource::Bytes bytes) {
    if (!IsSame(tensor, from, bytes, source, written, group) && !group.stopping()) {
      throw Error(ErrorCode::kDataLoss,
                  source.name() + ": tensor " + Quoted(tensor.name) +
                      " differs from the written tensor; no target is written");
    }
    compared += static_cast<int64_t>(bytes.size());
  };
  const auto compare_part = [&](int64_t part, const ParallelFor& parallel_for) {
    source.ReadPieces(part, parallel_for, compare);
  };
  for (int i = 0; i < n_threads; ++i) group.Add([&] { queue.Drain(group, compare_part); });
  group.Wait([&] { advance(compared.exchange(0)); });
}

// Merges the adapter. MergeAdapter compares logits, because merged weights have no other reference.
void Merge(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops,
           const fs::path& dir) {
  const engine::ModelDir base = engine::ModelDir::Open(spec.base);
  Progress progress(context, "merging the adapter");
  const engine::MergeOptions options{
      .texts = TextsOf(*OpenModelFiles(spec.base, {}), {}),
      .cache_dir = context.cache_dir,
      .dtype = FloatTypeOf(spec.dtype),
      .progress = [&](int64_t done, int64_t total) {
        progress.Reach(done, total,
                       "tensor " + std::to_string(done) + " of " + std::to_string(total));
      }};
  engine::MergeAdapter(base, engine::LoraAdapter::Open(spec.source), options, dir, ops);
}

// Warns about quantised tensors: they decode to rounded values, and the original numbers are lost.
void WarnOfBlocks(const ConvertSpec& spec, const JobContext& context) {
  if (FormOf(spec.source, "source").kind != SourceKind::kFile || !context.report) return;
  const engine::ModelDir model = engine::ModelDir::Open(spec.source);
  int64_t count = 0;
  for (const std::string& name : model.tensor_names()) {
    if (model.FindStored(name)->encoding != engine::Encoding::kPlain) ++count;
  }
  if (count == 0) return;
  context.report({"warning", 0, 0, 0,
                  std::to_string(count) +
                      " tensors of the source are quantised; their values are the decoded blocks"});
}

// A conversion of an adapter to hf needs no writer: the merged model is the target.
bool MergesIntoTarget(const ConvertSpec& spec, SourceKind kind) {
  return kind == SourceKind::kAdapter && FormatOf(spec).name == std::string_view("hf");
}

// Returns the merged adapter's directory, reusing the one of a killed process.
fs::path MergedDir(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops,
                   const WorkDir& work) {
  fs::path merged = work.path() / WorkDir::kMergedDir;
  engine::RemoveStaleTemporaries(work.path(), WorkDir::kMergedDir);
  if (!fs::exists(merged)) Merge(spec, context, ops, merged);
  return merged;
}

int64_t BytesToWrite(const ModelSource& source, const Format& format) {
  const bool has_state = format.keeps_state && source.state() != nullptr;
  return source.bytes() + (has_state ? source.state()->bytes() : 0);
}

void CompareAll(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                int n_threads, const std::function<void(int64_t bytes)>& advance) {
  const Format& format = FormatOf(spec);
  if (format.is_difference) return;
  if (format.compare != nullptr) return format.compare(spec, source, written, advance);
  Compare(source, written, n_threads, advance);
  if (written.state() != nullptr) Compare(*source.state(), *written.state(), n_threads, advance);
}

// Refuses shapes that are not the config's. Skips architectures that the engine does not run.
void CheckSource(const ModelSource& source,
                 const std::function<void(const std::string& text)>& warn) {
  ErrorOf({ErrorCode::kUnsupported}, [&] {
    const SourceConfig config = ConfigOf(source);
    CheckShapes(source, config);
    if (config.has_own_head) warn(engine::kOwnHeadNote);
  });
}

// Report of a writer.
struct WriterReport {
  std::string report_json;  // empty: none
  engine::FileHashes file_hashes;
};

WriterReport Write(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops,
                   const WorkDir& work) {
  const Format& format = FormatOf(spec);
  const SourceKind kind = FormOf(spec.source, "source").kind;
  if (MergesIntoTarget(spec, kind)) {
    if (!fs::exists(work.out())) fs::rename(MergedDir(spec, context, ops, work), work.out());
    return {};
  }
  WarnOfBlocks(spec, context);
  ConvertSpec read = spec;
  if (kind == SourceKind::kAdapter) read.source = MergedDir(spec, context, ops, work);
  const auto source =
      OpenSource(read, format.casts_source ? FloatTypeOf(spec.dtype) : std::nullopt);
  Journal journal(work.path() / WorkDir::kJournalFile);
  Progress progress(context, spec.verify ? "writing and verifying" : "writing",
                    (spec.verify ? 2 : 1) * BytesToWrite(*source, format));
  const auto advance = [&](int64_t bytes) { progress.Advance(bytes); };
  if (!format.supports_resume) fs::remove_all(work.out());
  if (!format.IsFile()) {
    fs::create_directory(work.out());
    engine::RemoveStaleTemporaries(work.out());  // small files left by a killed process
  }
  WriterReport written;
  const auto warn = [&](const std::string& text) {
    if (context.report) context.report({.kind = "warning", .message = text});
  };
  CheckSource(*source, warn);
  format.write(spec, {.source = *source,
                      .target = work.out(),
                      .ops = ops,
                      .advance = advance,
                      .journal = &journal,
                      .warn = warn,
                      .report = [&](std::string json) { written.report_json = std::move(json); },
                      .hashed =
                          [&](const engine::FileHashes& hashes) {
                            written.file_hashes.insert(hashes.begin(), hashes.end());
                          }});
  if (spec.verify) {
    CompareAll(spec, *source, *format.open(spec, work.out()), ops.pool().n_threads(), advance);
  }
  if (kind != SourceKind::kAdapter) return written;
  const fs::path merge = (format.IsFile() ? work.path() : work.out()) / kMergeFile;
  fs::copy_file(read.source / kMergeFile, merge, fs::copy_options::overwrite_existing);
  return written;
}

// Runs the result for its certificate and returns the text of its record.
std::string CertifiedRecord(const ConvertSpec& spec, const JobContext& context,
                            engine::OpsContext& ops, const WorkDir& work, WriterReport written) {
  Progress reporter(context, "certifying");
  const auto progress = [&] { reporter.Reach(1, 1, "comparing logits"); };
  const Certificate certificate = Certify(
      spec, work.out(),
      {.work_dir = work.path(), .cache_dir = context.cache_dir, .progress = progress, .ops = ops});
  RecordContext record{.job = JobOf(context), .cache_dir = context.cache_dir, .progress = progress};
  record.report_json = std::move(written.report_json);
  record.file_hashes = std::move(written.file_hashes);
  // The record of a single file is published before the file, so it names the file by inode.
  if (FormatOf(spec).IsFile()) record.inode = InodeOf(work.out());
  for (const fs::path& merge : {work.path() / kMergeFile, work.out() / kMergeFile}) {
    if (fs::exists(merge)) record.merge_json = engine::ReadWholeFile(merge, kMaxRecordBytes);
  }
  return RecordText(spec, work.out(), certificate, record);
}

// Hashes the weights of a parent ahead of time; the record then finds the remembered hash. Parents
// of other kinds are hashed by the record.
void HashAhead(const fs::path& path, const JobContext& context, const ThreadGroup& group) {
  const OpenedTensors opened = OpenTensors(path);
  if (opened.kind != TensorsKind::kModel) return;
  engine::ModelDir::Open(opened.path).ContentHash(context.cache_dir / "hashes", [&] {
    if (group.stopping()) throw Error(ErrorCode::kCancelled, "stopped");
  });
}

void MakeIn(WorkDir& work, const ConvertSpec& spec, const JobContext& context,
            engine::OpsContext& ops) {
  if (work.Begin(IdentityOf(spec)) && context.report) {
    context.report(
        {.kind = "message", .total_steps = 100, .message = "resuming an interrupted conversion"});
  }
  ThreadGroup hashing;
  if (!context.cache_dir.empty()) {
    for (const fs::path& parent_model : {spec.source, spec.base}) {
      if (parent_model.empty()) continue;
      hashing.Add([&hashing, &context, path = parent_model] { HashAhead(path, context, hashing); });
    }
  }
  WriterReport written = Write(spec, context, ops, work);
  Progress progress(context, "hashing the source");
  hashing.WaitForEnd([&] { progress.Reach(1, 1, "hashing the source"); });
  const std::string text = CertifiedRecord(spec, context, ops, work, std::move(written));
  const fs::path record = FormatOf(spec).IsFile() ? RecordOf(spec) : work.out() / kRecordFile;
  engine::WriteFileAtomically(record, text);
  if (!FormatOf(spec).IsFile()) AddToManifest(work.out(), text);
  work.Publish(spec.overwrite ? engine::IfThere::kReplace : engine::IfThere::kRefuse);
}

void Make(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops) {
  CheckConvertSpec(spec);
  const fs::path parent = engine::ParentOf(spec.target);
  for (const fs::path& name : {spec.target.filename(), RecordOf(spec).filename()}) {
    engine::RemoveStaleTemporaries(parent, name.string());
  }
  WorkDir work(spec.target);
  std::optional<Error> refused;  // the disk is full or failing
  const auto cancelled = ErrorOf({ErrorCode::kCancelled}, [&] {
    refused = engine::DiskErrorOf([&] { MakeIn(work, spec, context, ops); });
  });
  if (cancelled) {
    // A stopped job keeps its work: the owner restarts the job or removes the directory.
    if (!context.dir.empty()) work.Keep();
    throw Error(*cancelled);
  }
  if (!refused) return;
  if (!work.IsBegun()) throw Error(*refused);
  work.Keep();
  throw Error(refused->code(), std::string(refused->what()) + "; the finished part stays in " +
                                   work.path().string() +
                                   ": run the same conversion to resume, or remove the directory")
      .WithReason(refused->reason());
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
  if (!result.report_json.empty()) out[result.format] = Json::parse(result.report_json);
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
