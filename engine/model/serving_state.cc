// The ops of ServingOps for layers with state, and their gates.

#include "engine/base/check.h"
#include "engine/model/serving_ops.h"
#include "engine/ops/recurrence.h"

namespace tandem::engine {

// A wrong state would continue another sequence's text.
void ServingOps::CheckStates(const BatchView& batch) const {
  if (plan_.state_floats == 0) return;
  TANDEM_CHECK(batch.states.size() == batch.slices.size());
  for (size_t i = 0; i < batch.states.size(); ++i) {
    const SliceState& slice_state = batch.states[i];
    TANDEM_CHECK(slice_state.state != nullptr);
    int64_t before = batch.slices[i].first_position;
    const int64_t end = before + batch.slices[i].n_rows;
    for (const StateSave& save : slice_state.saves) {
      TANDEM_CHECK(save.position > before && save.position <= end);
      TANDEM_CHECK(save.state != nullptr && save.state != slice_state.state);
      before = save.position;
    }
  }
}

Act ServingOps::CausalConv(Act x, const Weight& w, const Weight* bias, const ConvSpec& spec) {
  const int32_t op = next_op_;
  const Act out = NextAct();
  engine::CausalConv(ops_, spec, F32(x), w.vector, bias == nullptr ? nullptr : bias->vector,
                     state_rows_, StateOffset(op), static_cast<float*>(At(out).data));
  if (op == plan_.last_attention_op) KeepListedRowsOnly(op);
  return out;
}

Act ServingOps::GatedDelta(Act qkv, Act a, Act b, const Weight& a_log, const Weight& dt_bias,
                           const DeltaSpec& spec) {
  const int32_t op = next_op_;
  const Act out = NextAct();
  const DeltaInputs in{
      .qkv = F32(qkv), .a = F32(a), .b = F32(b), .a_log = a_log.vector, .dt_bias = dt_bias.vector};
  engine::GatedDelta(ops_, spec, in, state_rows_, StateOffset(op),
                     static_cast<float*>(At(out).data));
  if (op == plan_.last_attention_op) KeepListedRowsOnly(op);
  return out;
}

Act ServingOps::SelectiveScan(Act xbc, Act dt, const Weight& a_log, const Weight& dt_bias,
                              const Weight& d, const ScanSpec& spec) {
  const int32_t op = next_op_;
  const Act out = NextAct();
  const ScanInputs in{.xbc = F32(xbc),
                      .dt = F32(dt),
                      .a_log = a_log.vector,
                      .dt_bias = dt_bias.vector,
                      .d = d.vector};
  engine::SelectiveScan(ops_, spec, in, state_rows_, StateOffset(op),
                        static_cast<float*>(At(out).data));
  if (op == plan_.last_attention_op) KeepListedRowsOnly(op);
  return out;
}

Act ServingOps::Gate(Act x, Act gate, GateForm form) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  GateRows(ops_, At(x), F32(gate), form, static_cast<float*>(At(out).data));
  return out;
}

}  // namespace tandem::engine
