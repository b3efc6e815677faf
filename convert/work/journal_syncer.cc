#include "convert/work/journal_syncer.h"

#include <chrono>
#include <set>
#include <utility>

#include "engine/io/posix_file.h"

namespace tandem::convert {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

JournalSyncer::JournalSyncer(const WriteContext& context) : journal_(context.journal) {
  const fs::path work_dir = engine::ParentOf(context.target);
  // These directories hold the names of the target and of the work directory.
  paths_ = {work_dir, engine::ParentOf(work_dir)};
  if (journal_ != nullptr) group_.Add([this] { Run(); });
}

void JournalSyncer::Add(Journal::Entry entry, const std::vector<fs::path>& paths) {
  if (journal_ == nullptr) return;
  if (group_.stopping()) group_.Wait();  // rethrows the failure
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
  paths_.insert(paths_.end(), paths.begin(), paths.end());
  changed_.notify_all();
}

void JournalSyncer::Finish() {
  {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;
    changed_.notify_all();
  }
  group_.Wait();
}

// Returns false when no work is left or the group stops.
bool JournalSyncer::Wait() {
  std::unique_lock lock(mutex_);
  while (entries_.empty() && !is_finished_ && !group_.stopping()) changed_.wait_for(lock, 50ms);
  return !entries_.empty() && !group_.stopping();
}

void JournalSyncer::Run() {
  while (Wait()) {
    std::unique_lock lock(mutex_);
    const auto entries = std::exchange(entries_, {});
    const auto paths = std::exchange(paths_, {});
    lock.unlock();
    for (const fs::path& path : std::set<fs::path>(paths.begin(), paths.end())) {
      engine::SyncPath(path);
    }
    journal_->Add(entries);
  }
}

}  // namespace tandem::convert
