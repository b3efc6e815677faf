#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tandem {

// What one model holds of the memory budget, by class.
struct MemoryClaim {
  int64_t weights = 0;
  int64_t kv = 0;       // keys and values
  int64_t scratch = 0;  // activations, logits, tables of positions
  // The weights are a file mapped for reading, whose pages other processes share; else our own.
  bool weights_mapped = false;

  int64_t total() const { return weights + kv + scratch; }
};

class MemoryLedger;

// A claim that is kept for as long as this lives. Moved, not copied; may outlive the ledger's
// owner. One thread at a time.
class MemoryReservation {
 public:
  MemoryReservation() = default;  // of nothing
  ~MemoryReservation() { Release(); }
  MemoryReservation(MemoryReservation&& other) noexcept = default;
  MemoryReservation& operator=(MemoryReservation&& other) noexcept;

  const MemoryClaim& claim() const { return claim_; }
  // More keys and values: up to `kv_bytes` in all, but no more on top than the `parts`-th part of
  // what is free.
  void GrowKv(int64_t kv_bytes, int64_t parts);
  // Once everything is in place: what it really takes, be it more or less.
  void Settle(const MemoryClaim& actual);
  void Release();

 private:
  friend class MemoryLedger;
  struct Book;
  std::shared_ptr<Book> book_;
  uint64_t key_ = 0;
  MemoryClaim claim_;
};

// Who holds how much of the memory budget of this process. Everything large is written down here
// before it is allocated, so that what does not fit is refused instead of killed. Thread-safe.
class MemoryLedger {
 public:
  explicit MemoryLedger(int64_t budget_bytes);

  // All of the claim or nothing. Throws kUnavailable (out_of_memory) with the arithmetic: what
  // `owner` needs, what is free, and who holds the rest.
  MemoryReservation Reserve(const std::string& owner, const MemoryClaim& claim);

  struct Entry {
    std::string owner;
    MemoryClaim claim;
  };
  std::vector<Entry> Entries() const;  // in the order of reservation
  int64_t budget_bytes() const;
  int64_t used_bytes() const;
  int64_t free_bytes() const;  // 0 where more is used than the budget has

 private:
  const std::shared_ptr<MemoryReservation::Book> book_;
};

// "5.2 GiB", "17.3 MiB", "512 bytes".
std::string BytesText(int64_t bytes);

}  // namespace tandem
