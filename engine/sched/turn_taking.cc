#include "engine/sched/turn_taking.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::engine {

uint64_t TurnTaking::Queue(int priority, uint64_t client, int n) {
  const auto [where, is_new] = lines_.try_emplace(priority);
  Line& line = where->second;
  if (is_new) line.now = highest_;
  ++line.n_queued;
  uint64_t& next = line.next[client];
  const uint64_t turn = std::max(line.now, next);
  next = turn + static_cast<uint64_t>(n);
  highest_ = std::max(highest_, turn);
  return turn;
}

void TurnTaking::Admitted(int priority, uint64_t turn) {
  const auto line = lines_.find(priority);
  TANDEM_CHECK(line != lines_.end());
  line->second.now = std::max(line->second.now, turn);
  Leave(line);
}

void TurnTaking::Left(int priority) {
  const auto line = lines_.find(priority);
  TANDEM_CHECK(line != lines_.end());
  Leave(line);
}

void TurnTaking::Leave(std::map<int, Line>::iterator line) {
  if (--line->second.n_queued == 0) lines_.erase(line);
}

}  // namespace tandem::engine
