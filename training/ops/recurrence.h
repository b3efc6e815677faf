#pragma once

#include <cstdint>
#include <span>

#include "engine/ops/recurrence.h"
#include "training/ops/attention.h"

namespace tandem::training {

// Backward passes of engine/ops/recurrence.h over packed segments. Gradients are dense f32 and are
// added to; null gradients of weights are frozen. Fixed order: parallel over channels or key heads,
// with the segments one after another inside a task.

// Segments as runs that start at zero and keep no state. `runs` has one entry per segment.
void FillStateRows(std::span<const Segment> segments, std::span<engine::StateRows> runs);

void CausalConvBackward(engine::OpsContext& ops, const engine::ConvSpec& spec, const float* x,
                        const float* w, const float* bias, const float* dy,
                        std::span<const Segment> segments, float* dx, float* dw, float* dbias);

struct DeltaGradients {
  float* qkv;
  float* a;
  float* b;
  float* a_log;
  float* dt_bias;
};
// Recomputes the states from those at every 64th row of a segment.
void GatedDeltaBackward(engine::OpsContext& ops, const engine::DeltaSpec& spec,
                        const engine::DeltaInputs& in, const float* dy,
                        std::span<const Segment> segments, const DeltaGradients& out);

struct ScanGradients {
  float* xbc;
  float* dt;
  float* a_log;
  float* dt_bias;
  float* d;
};
void SelectiveScanBackward(engine::OpsContext& ops, const engine::ScanSpec& spec,
                           const engine::ScanInputs& in, const float* dy,
                           std::span<const Segment> segments, const ScanGradients& out);

// Scratch of one worker for segments of at most `segment_rows` rows.
int64_t ConvBackwardScratchBytes(int64_t segment_rows);
int64_t RecurrenceBackwardScratchBytes(int64_t k_dim, int64_t v_dim, int64_t segment_rows);

// Backward of engine::GateRows.
void GateRowsBackward(engine::OpsContext& ops, const engine::ConstMatrix& x, const float* gate,
                      engine::GateForm form, const float* dy, float* dx, float* dgate);

}  // namespace tandem::training
