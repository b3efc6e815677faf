#include "training/program/nodes.h"

#include <array>

#include "engine/base/check.h"

namespace tandem::training {
namespace {

void NoForward(NodeRun&, const Node&) { TANDEM_CHECK(false); }
void NoBackward(NodeRun&, const Node&, const BackwardStep&) { TANDEM_CHECK(false); }

// In the order of OpKind.
constexpr std::array<NodeFunctions, kOpKinds> kFunctions = {{
    {ForwardEmbed, BackwardEmbed},                      // kEmbed
    {ForwardEmbed, BackwardEmbed},                      // kEmbedPositions
    {ForwardNorm, BackwardNorm},                        // kRmsNorm
    {ForwardNorm, BackwardNorm},                        // kLayerNorm
    {ForwardRound, NoBackward},                         // kRound
    {ForwardLinear, BackwardLinear},                    // kLinear
    {ForwardRope, BackwardRope},                        // kRope
    {ForwardAttention, BackwardAttention},              // kAttention
    {ForwardGatedActivation, BackwardGatedActivation},  // kGatedActivation
    {ForwardActivate, BackwardActivate},                // kActivate
    {ForwardColumns, BackwardColumns},                  // kColumns
    {ForwardAdd, BackwardAdd},                          // kAdd
    {ForwardMul, BackwardMul},                          // kMul
    {ForwardSigmoid, BackwardSigmoid},                  // kSigmoid
    {ForwardClamp, BackwardClamp},                      // kClamp
    {ForwardScale, BackwardScale},                      // kScale
    {ForwardSliceHeads, BackwardSliceHeads},            // kSliceHeads
    {ForwardJoinHeads, BackwardJoinHeads},              // kJoinHeads
    {ForwardDropout, BackwardDropout},                  // kDropout
    {ForwardRoute, BackwardRoute},                      // kRoute
    {ForwardExpertLinear, BackwardExpertLinear},        // kExpertLinear
    {ForwardCombine, BackwardCombine},                  // kCombine
    {ForwardCausalConv, BackwardCausalConv},            // kCausalConv
    {ForwardGatedDelta, BackwardGatedDelta},            // kGatedDelta
    {ForwardSelectiveScan, BackwardSelectiveScan},      // kSelectiveScan
    {ForwardGate, BackwardGate},                        // kGate
    {ForwardScaleExperts, BackwardScaleExperts},        // kScaleExperts
    {ForwardMix, BackwardMix},                          // kMix
    {ForwardMatchMagnitude, BackwardMatchMagnitude},    // kMatchMagnitude
    {ForwardAboveCut, BackwardAboveCut},                // kAboveCut
    {ForwardScaleColumns, BackwardScaleColumns},        // kScaleColumns
    {ForwardSoftCap, BackwardSoftCap},                  // kSoftCap
    {ForwardSpread, BackwardSpread},                    // kSpread
    {ForwardSumRanks, BackwardSumRanks},                // kSumRanks
    {NoForward, NoBackward},                            // kCrossEntropy
}};

}  // namespace

const NodeFunctions& FunctionsOf(OpKind op) { return kFunctions[static_cast<size_t>(op)]; }

}  // namespace tandem::training
