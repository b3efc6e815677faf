#include "training/checkpoint/checkpoint_store.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/disk_full.h"
#include "engine/base/durable_dirs.h"
#include "engine/io/atomic_write.h"
#include "engine/io/disk_error.h"
#include "engine/io/json.h"
#include "engine/io/mapped_file.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr size_t kMaxManifestBytes = 16 << 20;
constexpr const char* kManifest = "manifest.json";
// Names that readers ignore: a directory being deleted, and one that replaces, or was replaced by,
// a checkpoint of the same step.
constexpr const char* kTrash = ".trash-";
constexpr const char* kNext = ".next-";

std::string StepName(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%012lld", static_cast<long long>(step));
  return name;
}

bool IsStepName(const std::string& name) {
  return name.size() == 12 &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool IsLitter(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(kTrash) || name.starts_with(kNext);
}

void WriteText(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.flush();
  if (!out) throw Error(ErrorCode::kIo, path.string() + ": " + std::strerror(errno));
}

std::string HashOfFile(const fs::path& path) {
  return engine::ToHex(engine::Sha256Of(engine::MappedFile::Open(path)->bytes()));
}

// Plain names only: a manifest must not make us read outside its directory.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

void VerifyFile(const fs::path& dir, const ordered_json& file, const std::string& source) {
  const std::string name = engine::JsonStringOr(file, "name", "", source);
  if (!IsPlainName(name)) throw Error(ErrorCode::kDataLoss, source + ": bad file name");
  const fs::path path = dir / name;
  std::error_code failed;
  const uintmax_t bytes = fs::file_size(path, failed);
  if (failed) throw Error(ErrorCode::kDataLoss, path.string() + ": " + failed.message());
  const int64_t expected = engine::JsonInt(file, "bytes", 0, INT64_MAX, source);
  if (bytes != static_cast<uintmax_t>(expected)) {
    throw Error(ErrorCode::kDataLoss, path.string() + ": has " + std::to_string(bytes) +
                                          " bytes instead of " + std::to_string(expected));
  }
  if (HashOfFile(path) != engine::JsonStringOr(file, "sha256", "", source)) {
    throw Error(ErrorCode::kDataLoss, path.string() + ": content does not match its SHA-256");
  }
}

}  // namespace

FoundCheckpoint VerifyCheckpoint(const fs::path& dir) {
  const fs::path path = dir / kManifest;
  const std::string source = path.string();
  const ordered_json manifest =
      engine::ParseUntrustedJson(engine::ReadWholeFile(path, kMaxManifestBytes), source);
  if (!manifest.is_object() ||
      engine::JsonStringOr(manifest, "format", "", source) != "tandem-checkpoint") {
    throw Error(ErrorCode::kDataLoss, source + ": is not a checkpoint manifest");
  }
  const int64_t version = engine::JsonInt(manifest, "version", 0, INT64_MAX, source);
  if (version != kVersion) {
    throw Error(ErrorCode::kUnsupported,
                source + ": has checkpoint format version " + std::to_string(version) +
                    "; this program reads version " + std::to_string(kVersion));
  }
  FoundCheckpoint found;
  found.dir = dir;
  found.step = engine::JsonInt(manifest, "step", 0, INT64_MAX, source);
  const auto producer = manifest.find("producer");
  if (producer != manifest.end() && producer->is_object()) {
    found.isa_key = engine::JsonStringOr(*producer, "isa", "", source);
  }
  const auto files = manifest.find("files");
  if (files == manifest.end() || !files->is_array() || files->empty()) {
    throw Error(ErrorCode::kDataLoss, source + ": field files is missing");
  }
  for (const ordered_json& file : *files) VerifyFile(dir, file, source);
  return found;
}

CheckpointStore::CheckpointStore(fs::path dir, int64_t keep, std::function<int64_t()> free_bytes)
    : dir_(std::move(dir)), keep_(std::max<int64_t>(keep, 1)), free_bytes_(std::move(free_bytes)) {
  MakeDirectories(dir_);
  std::error_code failed;
  engine::RemoveStaleTemporaries(dir_);
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    if (IsLitter(entry.path())) fs::remove_all(entry.path(), failed);
  }
  if (!free_bytes_) {
    free_bytes_ = [this] { return engine::FreeDiskBytes(dir_); };
  }
}

std::vector<fs::path> CheckpointStore::Steps() const {
  std::vector<fs::path> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    if (IsStepName(entry.path().filename().string())) steps.push_back(entry.path());
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

void CheckpointStore::CheckRoom(const CheckpointContents& contents) const {
  int64_t bytes = 0;
  for (const auto& [name, text] : contents.texts) bytes += static_cast<int64_t>(text.size());
  for (const CheckpointContents::TensorFile& file : contents.tensor_files) {
    for (const engine::NamedTensor& tensor : file.tensors) {
      bytes += static_cast<int64_t>(tensor.view.bytes());
    }
  }
  bytes += bytes / 20;
  const int64_t free = free_bytes_();
  if (free >= bytes) return;
  throw Error(ErrorCode::kIo, dir_.string() + ": a checkpoint needs " + std::to_string(bytes) +
                                  " bytes, but the disk has only " + std::to_string(free) + " free")
      .WithReason(kDiskFullReason);
}

// Afterwards the replaced directory is at `next`, as litter.
void CheckpointStore::PutInPlace(const fs::path& next, const fs::path& final_dir) const {
  if (renameat2(AT_FDCWD, next.c_str(), AT_FDCWD, final_dir.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) {
    throw Error(ErrorCode::kIo, final_dir.string() + ": " + std::strerror(errno));
  }
  const fs::path trash = dir_ / (kTrash + final_dir.filename().string());
  fs::remove_all(trash);
  fs::rename(final_dir, trash);
  fs::rename(next, final_dir);
}

void CheckpointStore::Clear(int64_t step) {
  std::error_code ignored;
  for (const fs::path& old : Steps()) {
    if (old.filename().string() > StepName(step)) continue;
    const fs::path trash = dir_ / (kTrash + old.filename().string());
    fs::rename(old, trash, ignored);
    fs::remove_all(trash, ignored);
  }
}

fs::path CheckpointStore::SetAside(const fs::path& beside) {
  const std::vector<fs::path> steps = Steps();
  const bool has_beside = !beside.empty() && fs::exists(beside);
  if (steps.empty() && !has_beside) return {};
  int64_t n = 1;
  while (fs::exists(dir_ / ("earlier-" + std::to_string(n)))) ++n;
  const fs::path aside = dir_ / ("earlier-" + std::to_string(n));
  fs::create_directory(aside);
  for (const fs::path& step : steps) fs::rename(step, aside / step.filename());
  if (has_beside) fs::rename(beside, aside / beside.filename());
  fs::remove(dir_ / "LATEST");
  return aside;
}

fs::path CheckpointStore::Save(const CheckpointContents& contents, const WriteOthers& others) {
  CheckRoom(contents);
  const fs::path final_dir = dir_ / StepName(contents.step);
  const bool replaces = fs::exists(final_dir);
  const fs::path target = replaces ? dir_ / (kNext + StepName(contents.step)) : final_dir;
  if (replaces) fs::remove_all(target);  // left by a failed save

  engine::PublishDirectory(target, [&](const fs::path& temporary) {
    ordered_json files = ordered_json::array();
    const auto list = [&](const std::string& name, const std::string& sha256) {
      files.push_back({{"name", name},
                       {"bytes", static_cast<int64_t>(fs::file_size(temporary / name))},
                       {"sha256", sha256}});
    };
    for (const CheckpointContents::TensorFile& file : contents.tensor_files) {
      list(file.name, engine::WriteSafetensors(temporary / file.name, file.tensors, file.metadata));
    }
    if (others) {
      for (const CheckpointFile& file : others(temporary)) list(file.name, file.sha256);
    }
    for (const auto& [name, text] : contents.texts) {
      WriteText(temporary / name, text);
      list(name, engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text)))));
    }
    const ordered_json manifest = {{"format", "tandem-checkpoint"},
                                   {"version", kVersion},
                                   {"kind", contents.kind},
                                   {"layout", "unstacked"},
                                   {"arch", contents.arch},
                                   {"step", contents.step},
                                   {"producer", {{"name", "tandem"}, {"isa", contents.isa_key}}},
                                   {"files", files}};
    WriteText(temporary / kManifest, manifest.dump(2) + "\n");
  });
  if (replaces) PutInPlace(target, final_dir);
  const auto error = engine::DiskErrorOf([&] {
    engine::WriteFileAtomically(dir_ / "LATEST", StepName(contents.step) + "\n");
    DeleteOld();
  });
  if (error) fault_ = error->what();
  return final_dir;
}

void CheckpointStore::KeepParameters(fs::path dir, std::vector<std::string> state) {
  parameters_dir_ = std::move(dir);
  state_files_ = std::move(state);
  state_files_.emplace_back(kManifest);
  engine::RemoveStaleTemporaries(parameters_dir_);
}

// The files are shared with the checkpoint by hard links, so this takes no room and no time.
void CheckpointStore::SaveParameters(const fs::path& step) const {
  const std::string name = step.filename().string();
  const fs::path target =
      parameters_dir_ /
      ("step-" + name.substr(std::min(name.find_first_not_of('0'), name.size() - 1)));
  MakeDirectories(parameters_dir_);
  const auto link_all = [&](const fs::path& temporary) {
    for (const fs::directory_entry& file : fs::directory_iterator(step)) {
      const std::string file_name = file.path().filename().string();
      const bool is_state =
          std::any_of(state_files_.begin(), state_files_.end(), [&](const std::string& state) {
            return state.ends_with('-') ? file_name.starts_with(state) : file_name == state;
          });
      if (is_state) continue;
      std::error_code refused;
      fs::create_hard_link(file.path(), temporary / file_name, refused);
      if (refused) fs::copy_file(file.path(), temporary / file_name);
    }
  };
  // After a rollback the run reaches a step again with other weights.
  engine::PublishDirectory(target, link_all, engine::IfThere::kReplace);
}

// Renames before deleting, so that no reader takes a partial directory for a checkpoint.
void CheckpointStore::DeleteOld() const {
  const std::vector<fs::path> steps = Steps();
  std::error_code ignored;  // the next save tries again
  for (size_t i = static_cast<size_t>(keep_); i < steps.size(); ++i) {
    if (!parameters_dir_.empty()) SaveParameters(steps[i]);
    fs::rename(steps[i], dir_ / (kTrash + steps[i].filename().string()), ignored);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    if (IsLitter(entry.path())) fs::remove_all(entry.path(), ignored);
  }
}

std::optional<FoundCheckpoint> CheckpointStore::FindNewest(
    const std::function<void(const std::string& what)>& warn) const {
  for (const fs::path& step : Steps()) {
    std::optional<FoundCheckpoint> found;
    const auto error =
        ErrorOtherThan({ErrorCode::kUnsupported}, [&] { found = VerifyCheckpoint(step); });
    if (found) return found;
    warn("checkpoint " + step.filename().string() + " is not usable: " + error->what());
  }
  return std::nullopt;
}

}  // namespace tandem::training
