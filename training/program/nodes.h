#pragma once

#include "training/program/node_run.h"

// The bodies of nodes, by subject: nodes_<subject>.cc. A new op gets a forward and a backward there
// and a line in nodes.cc. Internal to the Executor.
namespace tandem::training {

// Runs a node forward on the present rows: the same engine/ops call as serving's.
using NodeForward = void (*)(NodeRun& run, const Node& node);
// Adds to the gradients of the node's inputs and weights; reads that of its output. Overwrites
// where the step says so. The gradient buffers in `step.zero` are zeroed before.
using NodeBackward = void (*)(NodeRun& run, const Node& node, const BackwardStep& step);

struct NodeFunctions {
  NodeForward forward;
  NodeBackward backward;
};
// The functions of an op. The backward passes skip kRound; the executor runs kCrossEntropy.
const NodeFunctions& FunctionsOf(OpKind op);

void ForwardEmbed(NodeRun& run, const Node& node);
void BackwardEmbed(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardNorm(NodeRun& run, const Node& node);
void BackwardNorm(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardRound(NodeRun& run, const Node& node);
void ForwardRope(NodeRun& run, const Node& node);
void BackwardRope(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardColumns(NodeRun& run, const Node& node);
void BackwardColumns(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardScale(NodeRun& run, const Node& node);
void BackwardScale(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardAdd(NodeRun& run, const Node& node);
void BackwardAdd(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardMul(NodeRun& run, const Node& node);
void BackwardMul(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardSigmoid(NodeRun& run, const Node& node);
void BackwardSigmoid(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardClamp(NodeRun& run, const Node& node);
void BackwardClamp(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardDropout(NodeRun& run, const Node& node);
void BackwardDropout(NodeRun& run, const Node& node, const BackwardStep& step);

void ForwardSliceHeads(NodeRun& run, const Node& node);
void BackwardSliceHeads(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardJoinHeads(NodeRun& run, const Node& node);
void BackwardJoinHeads(NodeRun& run, const Node& node, const BackwardStep& step);

void ForwardGatedActivation(NodeRun& run, const Node& node);
void BackwardGatedActivation(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardActivate(NodeRun& run, const Node& node);
void BackwardActivate(NodeRun& run, const Node& node, const BackwardStep& step);

void ForwardLinear(NodeRun& run, const Node& node);
void BackwardLinear(NodeRun& run, const Node& node, const BackwardStep& step);

void ForwardAttention(NodeRun& run, const Node& node);
void BackwardAttention(NodeRun& run, const Node& node, const BackwardStep& step);

void ForwardRoute(NodeRun& run, const Node& node);
void BackwardRoute(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardExpertLinear(NodeRun& run, const Node& node);
void BackwardExpertLinear(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardCombine(NodeRun& run, const Node& node);
void BackwardCombine(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardCausalConv(NodeRun& run, const Node& node);
void BackwardCausalConv(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardGatedDelta(NodeRun& run, const Node& node);
void BackwardGatedDelta(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardSelectiveScan(NodeRun& run, const Node& node);
void BackwardSelectiveScan(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardGate(NodeRun& run, const Node& node);
void BackwardGate(NodeRun& run, const Node& node, const BackwardStep& step);

void ForwardScaleExperts(NodeRun& run, const Node& node);
void BackwardScaleExperts(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardMix(NodeRun& run, const Node& node);
void BackwardMix(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardMatchMagnitude(NodeRun& run, const Node& node);
void BackwardMatchMagnitude(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardAboveCut(NodeRun& run, const Node& node);
void BackwardAboveCut(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardScaleColumns(NodeRun& run, const Node& node);
void BackwardScaleColumns(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardSpread(NodeRun& run, const Node& node);
void BackwardSpread(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardSumRanks(NodeRun& run, const Node& node);
void BackwardSumRanks(NodeRun& run, const Node& node, const BackwardStep& step);
void ForwardSoftCap(NodeRun& run, const Node& node);
void BackwardSoftCap(NodeRun& run, const Node& node, const BackwardStep& step);

}  // namespace tandem::training
