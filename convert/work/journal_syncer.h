#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <vector>

#include "convert/work/journal.h"
#include "convert/work/thread_group.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// Syncs what a writer has written and then says so in the journal, in a thread of its own behind
// the writer's, which waits for no disk. For one thread, which leaves the journal alone meanwhile.
class JournalSyncer {
 public:
  // Of what goes into context.target, and into context.journal; without one nothing is synced.
  explicit JournalSyncer(const WriteContext& context);

  // The entry is written down once the files and directories have been synced that its bytes, and
  // names within the target, are in. Throws what failed meanwhile.
  void Add(Journal::Entry entry, const std::vector<std::filesystem::path>& paths);
  // Returns when everything is written down; throws kIo.
  void Finish();

 private:
  void Run();
  bool Wait();

  Journal* const journal_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Journal::Entry> entries_;
  std::vector<std::filesystem::path> paths_;
  bool is_finished_ = false;
  ThreadGroup group_;  // last: its thread uses all of the above
};

}  // namespace tandem::convert
