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
  // The nodes of a feed-forward layer: the products before an activation, the activation and the
  // product after it. Empty when other nodes take part.
  std::vector<int32_t> LayerAround(int32_t activation) const {
    std::vector<int32_t> layer;
    for (const int32_t v : p_->nodes[activation].inputs) layer.push_back(p_->values[v].producer);
    layer.push_back(activation);
    const std::vector<int32_t>& after = readers_[p_->nodes[activation].outputs[0]];
    if (after.size() != 1) return {};
    layer.push_back(after[0]);
    for (size_t i = 0; i < layer.size(); ++i) {
      const Node& node = p_->nodes[layer[i]];
      if (layer[i] != layer[0] + static_cast<int32_t>(i)) return {};
      if (layer[i] == activation) continue;
      if (node.op != OpKind::kLinear) return {};
      if (layer[i] < activation && readers_[node.outputs[0]].size() != 1) return {};
    }
    return layer;
  }

  void Cut(const std::vector<int32_t>& layer) {
    for (const int32_t i : layer) {
      Node& node = p_->nodes[i];
      node.chunk = n_chunked_;
      for (const int32_t buffer :
           {node.forward_scratch, node.backward_scratch, node.lora.forward_scratch,
            node.lora.backward_scratch, node.lora.dropout_scratch}) {
        Shorten(buffer);
      }
      if (i == layer.back()) continue;  // the layer's output has all rows
      Value& value = p_->values[node.outputs[0]];
      value.chunked = true;
      Shorten(value.buffer);
    }
    ++n_chunked_;
  }

  void Shorten(int32_t buffer) {
    if (buffer < 0) return;
    int64_t& bytes = p_->buffers[buffer].bytes;
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
