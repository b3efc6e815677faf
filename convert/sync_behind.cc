#include "convert/sync_behind.h"

#include <chrono>
#include <set>
#include <utility>

#include "engine/io/posix_file.h"

namespace tandem::convert {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

SyncBehind::SyncBehind(const WriteContext& context) : journal_(context.journal) {
  const fs::path work_dir = engine::ParentOf(context.target);
  paths_ = {work_dir, engine::ParentOf(work_dir)};  // the target's name, and that one's
  if (journal_ != nullptr) crew_.Add([this] { Run(); });
}

void SyncBehind::Add(Journal::Entry entry, const std::vector<fs::path>& paths) {
  if (journal_ == nullptr) return;
  if (crew_.stopping()) crew_.Wait([] {});  // throws
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
  paths_.insert(paths_.end(), paths.begin(), paths.end());
  changed_.notify_all();
}

void SyncBehind::Finish() {
  {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;
    changed_.notify_all();
  }
  crew_.Wait([] {});
}

// False once there is nothing left to do.
bool SyncBehind::Wait() {
  std::unique_lock lock(mutex_);
  while (entries_.empty() && !is_finished_ && !crew_.stopping()) changed_.wait_for(lock, 50ms);
  return !entries_.empty() && !crew_.stopping();
}

void SyncBehind::Run() {
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
