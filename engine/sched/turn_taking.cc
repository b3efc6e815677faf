#include "engine/sched/turn_taking.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"

namespace tandem::engine {

void TurnTaking::Queue(const Entry& entry) {
  Client& client = clients_[entry.client];
  // Both sets allocate before either changes the result of Next.
  std::set<Turn> new_turn;
  if (client.queue.empty()) {
    client.start = std::max(client.start, now_);
    client.since = turns_given_++;
    new_turn.insert(TurnOf(entry.client, client));
  }
  TANDEM_CHECK(client.queue.insert(entry).second);
  turns_.merge(new_turn);
  ++size_;
}

void TurnTaking::Leave(const Entry& entry) {
  const auto client = clients_.find(entry.client);
  TANDEM_CHECK(client != clients_.end());
  TANDEM_CHECK(client->second.queue.erase(entry) == 1);
  if (client->second.queue.empty()) turns_.erase(TurnOf(entry.client, client->second));
  --size_;
  ForgetWhenEmpty();
}

std::optional<RequestId> TurnTaking::Next() const {
  if (turns_.empty()) return std::nullopt;
  return clients_.at(turns_.begin()->client).queue.begin()->request;
}

void TurnTaking::Admit() {
  TANDEM_CHECK(!turns_.empty());
  auto turn = turns_.extract(turns_.begin());
  const uint64_t id = turn.value().client;
  Client& client = clients_.at(id);
  const auto first = client.queue.begin();
  now_ = client.start;
  client.start += static_cast<uint64_t>(first->n);
  client.queue.erase(first);
  --size_;
  if (!client.queue.empty()) {
    client.since = turns_given_++;
    turn.value() = TurnOf(id, client);
    turns_.insert(std::move(turn));
  }
  ForgetWhenEmpty();
}

// An absent client keeps its start number while others wait: coming back does not bring its turn
// forward. With an empty queue all clients are equal, so the map forgets them.
void TurnTaking::ForgetWhenEmpty() {
  if (size_ == 0) clients_.clear();
}

}  // namespace tandem::engine
