#pragma once

#include "training/program/program.h"

// The passes that turn a recorded forward into a program. Internal to Record and its tests.
namespace tandem::training {

// Runs the feed-forward layers in chunks of `chunk_rows` rows. Values between their first and last
// products then live within a chunk. Throws kUnsupported when the program has no such layers.
void ChunkFeedForward(Program* program, int64_t chunk_rows);

// Assigns gradients and their buffers to values and appends the backward steps: the forward nodes
// in reverse, except those without work.
void AppendBackward(Program* program);

// Applies `save` to the activation functions. Returns which values the backward pass must not keep:
// values of chunks, and values that `save` replaces or recomputes. Throws kInvalidArgument naming
// the layer when a mask does not suffice, or when the model has no ReLU.
std::vector<bool> SaveActivations(Program* program, ActivationSave save);

// For each value, whether several layers read it beside the residual stream: inputs of all layers
// from before the first one, and keys and values that later layers share.
std::vector<bool> FindShared(const Program& program);

// A decoder layer of a recorded forward: the nodes [first, last). `entry` and shared values are
// their only inputs from outside.
struct Block {
  int32_t entry = -1;  // values
  int32_t exit = -1;   // the next layer's entry, or the input of the nodes after the layers
  int32_t first = 0;
  int32_t last = 0;
};

// Finds the layers in the graph. A layer begins at the last place before its attention where only
// one value is still needed beside shared ones: the residual stream. The last layer ends at its
// last such Add. Empty when the graph has no such places.
std::vector<Block> FindBlocks(const Program& program);

// For each value, whether the policy drops it; shared values stay. Not for kNone and kAuto.
std::vector<bool> ChooseDropped(const Program& program, const RematOptions& options);

// Inserts the steps that recompute dropped values. Each is placed right before the first backward
// step that needs its value, directly or through another.
void RemakeDropped(Program* program, const std::vector<bool>& dropped);

// Applies `options` and drops `dropped` in any case. kAuto throws kResourceExhausted when nothing
// fits.
void Rematerialize(Program* program, const RematOptions& options, const std::vector<bool>& dropped);

// Gives every buffer its lifetime in steps and its offset in the arena. Greedy interval packing:
// largest first, each at the lowest offset that is free during its whole life.
void AssignArena(Program* program);

}  // namespace tandem::training
