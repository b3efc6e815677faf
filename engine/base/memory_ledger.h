#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tandem {

// Share of the memory budget that one model holds, in bytes.
struct MemoryClaim {
  int64_t weights = 0;
  int64_t kv = 0;       // keys and values
  int64_t scratch = 0;  // activations, logits, position tables
  // Weights are a read-only file mapping, whose pages processes share. Otherwise they are private
  // memory.
  bool weights_mapped = false;

  int64_t total() const { return weights + kv + scratch; }
};

class MemoryLedger;

// Holds a claim during its lifetime. Moved, not copied; may outlive the ledger. One thread at a
// time.
class MemoryReservation {
 public:
  MemoryReservation() = default;  // empty claim
  ~MemoryReservation() { Release(); }
  MemoryReservation(MemoryReservation&& other) noexcept = default;
  MemoryReservation& operator=(MemoryReservation&& other) noexcept;

  const MemoryClaim& claim() const { return claim_; }
  // Raises the claim of keys and values to at most `kv_bytes`. The increase is at most the free
  // budget divided by `parts`.
  void GrowKv(int64_t kv_bytes, int64_t parts);
  // Replaces the claim by the actual use, larger or smaller, after everything is allocated.
  void Settle(const MemoryClaim& actual);
  void Release();

 private:
  friend class MemoryLedger;
  struct Book;
  std::shared_ptr<Book> book_;
  uint64_t key_ = 0;
  MemoryClaim claim_;
};

// Accounts for the memory budget of this process. Large allocations are reserved here first, so
// that one that does not fit is refused instead of killed. Thread-safe.
class MemoryLedger {
 public:
  explicit MemoryLedger(int64_t budget_bytes);

  // Reserves the whole claim or throws kUnavailable (out_of_memory). The message states the need of
  // `owner`, the free budget and the other holders.
  MemoryReservation Reserve(const std::string& owner, const MemoryClaim& claim);

  struct Entry {
    std::string owner;
    MemoryClaim claim;
  };
  std::vector<Entry> Entries() const;  // in the order of reservation
  int64_t budget_bytes() const;
  int64_t used_bytes() const;
  int64_t free_bytes() const;  // never negative

 private:
  const std::shared_ptr<MemoryReservation::Book> book_;
};

// For example "5.20 GiB", "17.3 MiB", "512 bytes".
std::string BytesText(int64_t bytes);

}  // namespace tandem
