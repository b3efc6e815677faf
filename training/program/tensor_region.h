#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "training/program/program.h"

namespace tandem::training {

// Follows which values of a program that is being recorded are a rank's own part: those from a
// layer whose outputs ranks share to one whose inputs they share. Refuses ops that would need the
// other ranks' parts. Internal to Record; borrows the program.
class TensorRegion {
 public:
  TensorRegion(Program* program, const engine::ModelConfig& part);

  bool is_split() const { return p_->tensor.is_split(); }
  WeightSplit::Axis AxisOf(int32_t weight) const;
  // Whether a value is this rank's own columns, or its part of a sum that sum_ranks completes.
  bool IsPart(int32_t value) const;
  // Marks a weight that the ranks have whole and use for their parts, or for whole values.
  void Use(int32_t weight, bool for_parts);
  // Checks the node and marks its outputs and weights.
  void Take(Node* node);

 private:
  void Mark(int32_t value, bool is_part);
  void TakeLinear(Node* node);
  void TakeAttention(const Node& node);
  void TakeExperts(Node* node);
  void TakeCombine(Node* node);
  void TakeOther(Node* node);
  bool RoutesAllRows(OpKind op) const;
  void CheckNorm(const Node& node) const;
  [[noreturn]] void Refuse(const Node& node, const std::string& why) const;

  Program* p_;
  std::vector<int64_t> head_dims_;
  std::vector<bool> is_part_;               // by value
  std::map<int32_t, bool> used_for_parts_;  // by whole weight
};

// Finds the runs of outputs (WeightSplit) of matrices whose products are cut into columns.
void FindRuns(Program* program);

}  // namespace tandem::training
