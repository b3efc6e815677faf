#include "training/run/run_saver.h"

#include <cstdio>
#include <random>
#include <utility>

#include "engine/io/atomic_write.h"
#include "training/run/shared_files.h"
#include "training/step/moment_shards.h"

namespace tandem::training {

namespace fs = std::filesystem;

namespace {

// Weights of deleted checkpoints, beside the checkpoints.
fs::path ParametersDir(const fs::path& checkpoints) {
  return checkpoints.parent_path() / "parameters";
}

constexpr const char* kStoragePlace = "base_output_directory";
constexpr const char* kLocalPlace = "checkpoint.local_directory";

}  // namespace

RunSaver::RunSaver(RunParts& parts, const fs::path& dir, Reports reports)
    : parts_(parts), reports_(std::move(reports)) {
  if (!parts.is_first_rank()) return;
  store_.emplace(dir, parts.spec.checkpoint.keep);
  if (parts.spec.checkpoint.keep_parameters) {
    store_->KeepParameters(ParametersDir(dir), {"optim.safetensors", "optim-", "train_state.json"});
  }
  writer_.emplace(*store_);
  if (!parts.spec.checkpoint.local_dir.empty()) OpenLocalStore(dir);
}

// The local directory outlives the run's own one, which someone may delete to begin anew. A random
// word in both ties them together.
void RunSaver::OpenLocalStore(const fs::path& dir) {
  const fs::path file = dir / "local-checkpoints";
  std::string word;
  if (fs::exists(file)) word = engine::ReadWholeFile(file, 64);
  if (word.size() != 16 || word.find_first_not_of("0123456789abcdef") != std::string::npos) {
    std::random_device random;
    char text[17];
    std::snprintf(text, sizeof text, "%08x%08x", random(), random());
    word = text;
    engine::WriteFileAtomically(file, word);
  }
  const CheckpointSection& spec = parts_.spec.checkpoint;
  local_.emplace(spec.local_dir / (parts_.spec.run_dir().filename().string() + "-" + word), 1);
}

std::optional<FoundCheckpoint> RunSaver::Begin() {
  return Shared(store_ ? BeginHere() : std::nullopt);
}

std::optional<FoundCheckpoint> RunSaver::FindNewest() {
  return Shared(store_ ? FindHere(nullptr) : std::nullopt);
}

std::optional<FoundCheckpoint> RunSaver::Shared(std::optional<FoundCheckpoint> found) {
  if (parts_.ranks != nullptr) {
    Collectives& ranks = *parts_.ranks;
    const std::string dir = ranks.BroadcastText(found ? found->dir.string() : "", 0);
    const std::string step = ranks.BroadcastText(found ? std::to_string(found->step) : "0", 0);
    const std::string isa_key = ranks.BroadcastText(found ? found->isa_key : "", 0);
    if (!dir.empty()) found = FoundCheckpoint{std::stoll(step), dir, isa_key};
  }
  if (found) newest_ = found->dir;
  return found;
}

std::optional<FoundCheckpoint> RunSaver::BeginHere() {
  if (parts_.spec.checkpoint.resume) {
    std::vector<std::string> unusable;
    if (auto found = FindHere(&unusable)) return found;
    const bool may_restart = parts_.spec.checkpoint.on_unreadable != OnUnreadable::kError;
    if (!unusable.empty() && !may_restart) ThrowUnusable(unusable);
  }
  if (local_) local_->Clear(INT64_MAX);
  if (const fs::path aside = store_->SetAside(ParametersDir(store_->dir())); !aside.empty()) {
    reports_.warn("checkpoints of an earlier run are now in " + aside.string());
  }
  return std::nullopt;
}

void RunSaver::ThrowUnusable(const std::vector<std::string>& unusable) const {
  std::string message = "no checkpoint in " + store_->dir().string() + " is usable:";
  for (const std::string& what : unusable) message += "\n  " + what;
  throw Error(
      ErrorCode::kDataLoss,
      message +
          "\nrestore one of them, choose another run_name, or set "
          "checkpoint.on_unreadable=restart, which moves them aside and restarts at step 0");
}

std::optional<FoundCheckpoint> RunSaver::FindHere(std::vector<std::string>* unusable) {
  Take(Wait::kYes);
  const auto warn = [&](const std::string& what) {
    if (unusable != nullptr) unusable->push_back(what);
    reports_.warn(what);
  };
  auto found = store_->FindNewest(warn);
  if (!local_) return found;
  auto near = local_->FindNewest(reports_.warn);
  return near && (!found || near->step > found->step) ? near : found;
}

void RunSaver::Saved(const fs::path& checkpoint) {
  newest_ = checkpoint;
  if (local_ && checkpoint.parent_path() == store_->dir()) {
    local_->Clear(std::stoll(checkpoint.filename().string()));  // of no use any more
  }
  reports_.saved(checkpoint);
  for (auto* store : {&store_, &local_}) {
    const std::string fault = *store ? (*store)->TakeFault() : "";
    if (fault.empty()) continue;
    reports_.warn(
        checkpoint.string() +
        " is saved; the work after it failed and is tried again at the next save: " + fault);
  }
}

void RunSaver::Take(Wait wait) {
  if (!writer_) return;
  const auto result = writer_->Take(wait == Wait::kYes);
  if (!result) return;
  Guarded(reports_.warn, "saving a checkpoint", [&] {
    if (result->failure) std::rethrow_exception(result->failure);
    Saved(result->dir);
  });
}

void RunSaver::SaveTogether(const RunProgress& progress, CheckpointStore* store,
                            const char* place) {
  Take(Wait::kYes);
  SharedFiles files(parts_, true, place);
  Guarded(reports_.warn, "saving a checkpoint", [&] {
    files.WriteAll([&](const SharedFiles::Write& write) {
      CheckpointContents contents = TextsOf(parts_, progress);
      contents.texts.merge(files.texts());
      Saved(store->Save(contents, write));
    });
  });
}

void RunSaver::SaveLocally(const RunProgress& progress) {
  if (WritesTogether(parts_)) {
    return SaveTogether(progress, local_ ? &*local_ : nullptr, kLocalPlace);
  }
  GatheredMoments moments;
  if (parts_.trainer.parameters().shard().size > 1) {
    moments = GatherMoments(*parts_.ranks, parts_.trainer.parameters());
  }
  if (!local_) return;
  Take(Wait::kYes);
  Guarded(reports_.warn, "saving a local checkpoint", [&] {
    std::vector<std::vector<std::byte>> bytes;
    Saved(local_->Save(ContentsOf(parts_, progress, moments.tensors, &bytes)));
  });
}

void RunSaver::Save(const RunProgress& progress, Wait wait) {
  if (WritesTogether(parts_)) {
    return SaveTogether(progress, store_ ? &*store_ : nullptr, kStoragePlace);
  }
  GatheredMoments moments;
  if (parts_.trainer.parameters().shard().size > 1) {
    moments = GatherMoments(*parts_.ranks, parts_.trainer.parameters());
  }
  if (!store_) return;
  Take(Wait::kYes);
  Guarded(reports_.warn, "saving a checkpoint", [&] {
    CheckpointSnapshot snapshot;
    snapshot.contents = ContentsOf(parts_, progress, moments.tensors, &snapshot.bytes);
    if (wait == Wait::kNo && parts_.spec.checkpoint.async) {
      // The weights are copies already. The last file holds the optimiser's own tensors.
      if (CopyTensors(snapshot.contents.tensor_files.back(), &snapshot.copies)) {
        writer_->Start(std::move(snapshot));
        return;
      }
      reports_.warn(
          "not enough memory for a copy of the moments: training waits for this checkpoint");
    }
    Saved(store_->Save(snapshot.contents));
  });
}

RunProgress RollBack(RunParts& parts, const FoundCheckpoint& found, const WarnFunction& warn) {
  const PackerState ahead = parts.packer.state();
  RunProgress progress = RestoreRun(parts, found, warn);
  parts.packer.Restore(ahead);
  parts.trainer.MastersChanged();
  return progress;
}

}  // namespace tandem::training
