#include "engine/model/stored_head.h"

#include <algorithm>

#include "engine/model/find_weight.h"

namespace tandem::engine {
namespace {

constexpr size_t kPieceBytes = size_t{16} << 20;

bool AreEqual(const ModelDir& dir, const StoredTensor& a, const StoredTensor& b) {
  if (!a.IsAsAsked() || !b.IsAsAsked()) return false;
  if (a.view.dtype != b.view.dtype || a.view.shape != b.view.shape) return false;
  const std::span<const std::byte> all_a = a.bytes(), all_b = b.bytes();
  for (size_t at = 0; at < all_a.size(); at += kPieceBytes) {
    const size_t size = std::min(kPieceBytes, all_a.size() - at);
    const auto piece_a = all_a.subspan(at, size), piece_b = all_b.subspan(at, size);
    const bool is_equal = std::ranges::equal(piece_a, piece_b);
    dir.LetGo(piece_a);
    dir.LetGo(piece_b);
    if (!is_equal) return false;
  }
  return true;
}

}  // namespace

std::optional<TiedHead> FindTiedHead(const FamilySpec& family, const ModelConfig& config) {
  if (!config.tied_embeddings) return std::nullopt;
  ModelConfig untied = config;
  untied.tied_embeddings = false;
  std::vector<WeightSpec> specs = family.list_weights(untied);
  // Families list the embedding table first and an untied head last.
  if (specs.size() != family.list_weights(config).size() + 1) return std::nullopt;
  return TiedHead{std::move(specs.back()), std::move(specs.front())};
}

bool HasOwnHead(const ModelDir& dir, const FamilySpec& family, const ModelConfig& config) {
  const std::optional<TiedHead> tied = FindTiedHead(family, config);
  if (!tied) return false;
  const std::optional<StoredTensor> head = FindWeight(dir, tied->head);
  const std::optional<StoredTensor> table = FindWeight(dir, tied->table);
  return head && table && !AreEqual(dir, *head, *table);
}

}  // namespace tandem::engine
