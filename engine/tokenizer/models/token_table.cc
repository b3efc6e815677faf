#include "engine/tokenizer/models/token_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

// Multiply-and-fold hash, as in wyhash: one multiplication per 16 bytes. The only requirements on
// the constants: odd, with about half of their bits set.
constexpr uint64_t kMulA = 0x9E3779B97F4A7C15ull;  // 2^64 / golden ratio
constexpr uint64_t kMulB = 0xC2B2AE3D27D4EB4Full;

uint64_t Fold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t Load(const char* p, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, p, bytes);
  return word;
}

uint32_t HashBytes(std::string_view bytes) {
  const char* p = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = left * kMulB;
  while (left > 16) {
    hash = Fold(Load(p, 8) ^ kMulA ^ hash, Load(p + 8, 8) ^ kMulB);
    p += 16;
    left -= 16;
  }
  const uint64_t a = left >= 8 ? Load(p, 8) : Load(p, left);
  const uint64_t b = left > 8 ? Load(p + 8, left - 8) : 0;
  return static_cast<uint32_t>(Fold(a ^ kMulA ^ hash, b ^ kMulB) >> 16);
}

}  // namespace

TokenTable::TokenTable(size_t expected_tokens, TokenId id_limit)
    : spans_(static_cast<size_t>(id_limit)) {
  Rehash(std::bit_ceil(std::max<size_t>(16, expected_tokens * 2)));
}

void TokenTable::Rehash(size_t slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(slots, Slot{});
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t i = slot.hash & (slots - 1);
    while (slots_[i].id >= 0) i = (i + 1) & (slots - 1);
    slots_[i] = slot;
  }
}

bool TokenTable::Insert(std::string_view bytes, TokenId id) {
  TANDEM_CHECK(id >= 0 && id < id_limit());
  TANDEM_CHECK(arena_.size() + bytes.size() < kAbsent);
  if (Has(id) || Find(bytes) >= 0) return false;
  if ((used_ + 1) * 2 > slots_.size()) Rehash(slots_.size() * 2);

  const uint32_t hash = HashBytes(bytes);
  size_t i = hash & (slots_.size() - 1);
  while (slots_[i].id >= 0) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {hash, id};
  spans_[static_cast<size_t>(id)] = {static_cast<uint32_t>(arena_.size()),
                                     static_cast<uint32_t>(bytes.size())};
  arena_.append(bytes);
  ++used_;
  longest_ = std::max(longest_, bytes.size());
  return true;
}

TokenId TokenTable::Find(std::string_view bytes) const {
  const uint32_t hash = HashBytes(bytes);
  for (size_t i = hash & (slots_.size() - 1); slots_[i].id >= 0;
       i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].hash == hash && String(slots_[i].id) == bytes) return slots_[i].id;
  }
  return -1;
}

std::string_view TokenTable::String(TokenId id) const {
  if (!Has(id)) return {};
  const Span span = spans_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(span.begin, span.size);
}

bool TokenTable::Has(TokenId id) const {
  return id >= 0 && id < id_limit() && spans_[static_cast<size_t>(id)].size != kAbsent;
}

PairTable::PairTable(size_t expected_pairs)
    : slots_(std::bit_ceil(std::max<size_t>(16, expected_pairs * 2))) {}

size_t PairTable::Probe(uint64_t key) const {
  size_t i = static_cast<size_t>(Fold(key ^ kMulB, kMulA)) & (slots_.size() - 1);
  while (slots_[i].key != key && slots_[i].key != kFree) i = (i + 1) & (slots_.size() - 1);
  return i;
}

static uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

void PairTable::Set(TokenId left, TokenId right, Merge merge) {
  Slot& slot = slots_[Probe(PairKey(left, right))];
  if (slot.key == kFree) {
    TANDEM_CHECK((++used_) * 2 <= slots_.size());
    slot.key = PairKey(left, right);
  }
  slot.merge = merge;
}

PairTable::Merge PairTable::Find(TokenId left, TokenId right) const {
  return slots_[Probe(PairKey(left, right))].merge;
}

void PairTable::RemoveResults(const std::vector<TokenId>& merged) {
  if (merged.empty()) return;
  const std::unordered_set<TokenId> removed(merged.begin(), merged.end());
  for (Slot& slot : slots_) {
    if (slot.key != kFree && removed.contains(slot.merge.merged)) slot.merge = {};
  }
}

}  // namespace tandem::engine
