#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "training/program/passes.h"

namespace tandem::training {
namespace {

class Chunker {
 public:
  Chunker(Program* program, int64_t chunk_rows) : p_(program), chunk_rows_(chunk_rows) {
    readers_.resize(p_->values.size());
    for (size_t i = 0; i < p_->nodes.size(); ++i) {
      for (const int32_t v : p_->nodes[i].inputs) readers_[v].push_back(static_cast<int32_t>(i));
    }
  }

  void Run() {
    for (size_t i = 0; i < p_->nodes.size(); ++i) {
      const OpKind op = p_->nodes[i].op;
      if (op != OpKind::kActivate && op != OpKind::kGatedActivation) continue;
      const std::vector<int32_t> layer = LayerAround(static_cast<int32_t>(i));
      if (!layer.empty()) Cut(layer);
    }
    if (n_chunked_ > 0) return;
    throw Error(ErrorCode::kUnsupported,
                "train.seq_chunk: family " + p_->family +
                    " has no feed-forward layers that can run in chunks: leave the key out");
  }

 private:
  // The nodes of a feed-forward layer: the products before an activation (or one product and its
  // columns), the activation and the product after it, with experts also their combination. Empty
  // when other nodes take part.
  std::vector<int32_t> LayerAround(int32_t activation) const {
    std::vector<int32_t> layer;
    for (const int32_t v : p_->nodes[activation].inputs) layer.push_back(p_->values[v].producer);
    const Node& first = p_->nodes[layer[0]];
    const bool fused = first.op == OpKind::kColumns;
    if (fused) {
      const int32_t product = p_->values[first.inputs[0]].producer;
      if (readers_[first.inputs[0]].size() != layer.size()) return {};
      layer.insert(layer.begin(), product);
    }
    layer.push_back(activation);
    const std::vector<int32_t>& after = readers_[p_->nodes[activation].outputs[0]];
    if (after.size() != 1) return {};
    layer.push_back(after[0]);
    if (IsCombined(after[0])) layer.push_back(after[0] + 1);
    for (size_t i = 0; i < layer.size(); ++i) {
      const Node& node = p_->nodes[layer[i]];
      if (layer[i] != layer[0] + static_cast<int32_t>(i) || node.divided) return {};
      if (layer[i] == activation) continue;
      if (node.op == OpKind::kCombine && i + 1 == layer.size()) continue;
      const bool is_product = fused && i == 0;
      const bool is_slice = fused && !is_product && layer[i] < activation;
      if (is_slice ? node.op != OpKind::kColumns
                   : node.op != OpKind::kLinear && node.op != OpKind::kExpertLinear) {
        return {};
      }
      if (is_product || layer[i] > activation) continue;
      if (readers_[node.outputs[0]].size() != 1) return {};
    }
    return layer;
  }

  // Whether the next node combines this product, and nothing else reads it.
  bool IsCombined(int32_t product) const {
    if (p_->nodes[product].op == OpKind::kCrossEntropy) return false;
    const std::vector<int32_t>& readers = readers_[p_->nodes[product].outputs[0]];
    return readers.size() == 1 && readers[0] == product + 1 &&
           p_->nodes[readers[0]].op == OpKind::kCombine;
  }

  void Cut(const std::vector<int32_t>& layer) {
    for (const int32_t i : layer) {
      Node& node = p_->nodes[i];
      node.chunk = n_chunked_;
      for (const int32_t buffer :
           {node.forward_scratch, node.backward_scratch, node.lora.forward_scratch,
            node.lora.backward_scratch, node.lora.dropout_scratch, node.lora.dora_scratch}) {
        Shorten(buffer, node);
      }
      if (i == layer.back()) continue;  // the layer's output has all rows
      Value& value = p_->values[node.outputs[0]];
      value.chunked = true;
      Shorten(value.buffer, node);
    }
    ++n_chunked_;
  }

  void Shorten(int32_t buffer, const Node& node) {
    if (buffer < 0) return;
    int64_t& bytes = p_->buffers[buffer].bytes;
    if (node.op == OpKind::kExpertLinear && buffer == node.backward_scratch) {
      bytes = ExpertBackwardBytes(*p_, node, chunk_rows_);
      return;
    }
    TANDEM_CHECK(bytes % p_->rows == 0);
    bytes = bytes / p_->rows * chunk_rows_;
  }

  Program* p_;
  int64_t chunk_rows_;
  std::vector<std::vector<int32_t>> readers_;  // per value
  int32_t n_chunked_ = 0;
};

}  // namespace

void ChunkFeedForward(Program* program, int64_t chunk_rows) {
  TANDEM_CHECK(chunk_rows > 0);
  if (chunk_rows >= program->rows) return;  // a single chunk
  program->chunk_rows = chunk_rows;
  Chunker(program, chunk_rows).Run();
}

size_t ChunkRunEnd(const Program& program, size_t first) {
  const int32_t chunk = program.nodes[program.backward[first].node].chunk;
  size_t end = first + 1;
  if (chunk < 0) return end;
  while (end < program.backward.size() &&
         program.nodes[program.backward[end].node].chunk == chunk) {
    ++end;
  }
  return end;
}

}  // namespace tandem::training
