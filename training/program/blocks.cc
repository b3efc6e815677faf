#include <algorithm>

#include "training/program/passes.h"

namespace tandem::training {
namespace {

// For each node, the only value that later nodes still need, shared values apart; -1 when they need
// several.
std::vector<int32_t> FindCuts(const Program& program) {
  const std::vector<bool> shared = FindShared(program);
  std::vector<int32_t> last_use(program.values.size(), -1);
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    for (const int32_t v : program.nodes[i].inputs) last_use[v] = static_cast<int32_t>(i);
  }
  std::vector<int32_t> cuts(program.nodes.size(), -1);
  std::vector<int32_t> live;
  for (size_t i = 0; i + 1 < program.nodes.size(); ++i) {
    const auto here = static_cast<int32_t>(i);
    std::erase_if(live, [&](int32_t v) { return last_use[v] <= here; });
    for (const int32_t v : program.nodes[i].outputs) {
      if (last_use[v] > here && !shared[v]) live.push_back(v);
    }
    if (live.size() == 1) cuts[i] = live[0];
  }
  return cuts;
}

}  // namespace

std::vector<bool> FindShared(const Program& program) {
  struct Uses {
    int mixers_before_first = -1;  // -1: no use
    int mixers_before_last = 0;
    int attentions = 0;  // that read it as keys or values
  };
  std::vector<Uses> uses(program.values.size());
  std::vector<bool> shared(program.values.size(), false);
  int mixers = 0;
  for (const Node& node : program.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Uses& of = uses[node.inputs[i]];
      if (of.mixers_before_first < 0) of.mixers_before_first = mixers;
      of.mixers_before_last = mixers;
      if (node.op == OpKind::kAttention && (i == 1 || i == 2)) ++of.attentions;
    }
    mixers += MixesRows(node.op) ? 1 : 0;
  }
  mixers = 0;
  for (const Node& node : program.nodes) {
    for (const int32_t v : node.outputs) {
      // A residual stream is read before the layer's mixer.
      const bool feeds_layers = mixers == 0 && uses[v].mixers_before_first > 0 &&
                                uses[v].mixers_before_last > uses[v].mixers_before_first;
      shared[v] = feeds_layers || uses[v].attentions > 1;
    }
    mixers += MixesRows(node.op) ? 1 : 0;
  }
  return shared;
}

std::vector<Block> FindBlocks(const Program& program) {
  const std::vector<int32_t> cuts = FindCuts(program);
  const auto n = static_cast<int32_t>(program.nodes.size());
  std::vector<Block> blocks;
  int32_t cut = -1;   // node of the last cut so far
  int32_t tail = -1;  // node of the last cut at an Add
  for (int32_t i = 0; i < n; ++i) {
    if (MixesRows(program.nodes[i].op)) {
      if (cut < 0) return {};
      if (blocks.empty() || blocks.back().first != cut + 1) {
        blocks.push_back({cuts[cut], -1, cut + 1, -1});
      }
      tail = -1;
    }
    if (cuts[i] < 0) continue;
    cut = i;
    if (program.nodes[i].op == OpKind::kAdd) tail = i;
  }
  if (blocks.empty() || (tail < 0 && cut < blocks.back().first)) return {};
  for (size_t b = 0; b + 1 < blocks.size(); ++b) {
    blocks[b].exit = blocks[b + 1].entry;
    blocks[b].last = blocks[b + 1].first;
  }
  blocks.back().last = (tail >= 0 ? tail : cut) + 1;
  blocks.back().exit = cuts[blocks.back().last - 1];
  return blocks;
}

}  // namespace tandem::training
