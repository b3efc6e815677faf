#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <vector>

#include "convert/work/journal.h"
#include "convert/work/write_context.h"
#include "engine/base/thread_group.h"

namespace tandem::convert {

// Syncs written files and then adds their journal entries, in a thread of its own, so that the
// writer never waits for the disk. One thread may call it; it must not use the journal meanwhile.
class JournalSyncer {
 public:
  // Covers what is written to context.target. Does nothing if context.journal is null.
  explicit JournalSyncer(const WriteContext& context);

  // Queues the entry. It is added after `paths` are synced: the files with its bytes and the
  // directories with their names. Throws an earlier failure of the thread.
  void Add(Journal::Entry entry, const std::vector<std::filesystem::path>& paths);
  // Returns when all entries are in the journal; throws kIo.
  void Finish();

 private:
  void Run();
  bool Wait();

  Journal* const journal_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Journal::Entry> entries_;
  std::vector<std::filesystem::path> paths_;
  bool is_finished_ = false;
  ThreadGroup group_;  // last: its thread uses all of the above
};

}  // namespace tandem::convert
