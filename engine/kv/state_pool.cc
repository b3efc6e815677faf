#include "engine/kv/state_pool.h"

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"

namespace tandem::engine {

StatePool::StatePool(int64_t n_states) : slots_(n_states) {}

std::optional<StateId> StatePool::TryAllocate() {
  const std::optional<BlockPool::Allocation> allocation = slots_.TryAllocate();
  if (!allocation) return std::nullopt;
  const StateId id{allocation->block.value};
  if (const auto key = key_of_.find(id); key != key_of_.end()) {
    slot_of_.erase(key->second);
    key_of_.erase(key);
  }
  return id;
}

void StatePool::AddRef(StateId id) { slots_.AddRef(BlockId{id.value}); }
void StatePool::Release(StateId id) { slots_.Release(BlockId{id.value}); }

bool StatePool::MayWrite(StateId id) const { return references(id) == 1 && !key_of_.contains(id); }

void StatePool::Publish(const Sha256Digest& key, StateId id) {
  TANDEM_CHECK(!key_of_.contains(id));
  // An entry in only one of the maps would later return the state of another text.
  bool is_new = false;
  const bool has_both = HasMemoryFor([&] {
    is_new = slot_of_.try_emplace(key, id).second;
    if (is_new) key_of_.emplace(id, key);
  });
  if (!has_both && is_new) slot_of_.erase(key);
  if (has_both && is_new) slots_.SetCached(BlockId{id.value}, true);
}

std::optional<StateId> StatePool::Find(const Sha256Digest& key) const {
  const auto found = slot_of_.find(key);
  if (found == slot_of_.end()) return std::nullopt;
  return found->second;
}

void StatePool::Forget(StateId id) {
  const auto key = key_of_.find(id);
  if (key == key_of_.end()) return;
  slot_of_.erase(key->second);
  key_of_.erase(key);
  slots_.SetCached(BlockId{id.value}, false);
}

void StatePool::ForgetAll() {
  while (!key_of_.empty()) Forget(key_of_.begin()->first);
}

}  // namespace tandem::engine
