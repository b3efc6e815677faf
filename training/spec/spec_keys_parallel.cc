// Keys of training on several ranks.

#include "training/spec/spec_sections.h"

namespace tandem::training {

// clang-format off
namespace {

// One size of a mesh axis: a number of ranks, or -1.
template <class Field>
SpecValue AxisSizeOf(Field field) {
  return {[=](TrainSpec& spec, const GivenValue& given) {
            const int64_t size = ParseInteger(ScalarText(given));
            CheckRange(static_cast<double>(size), -1, 1 << 20);
            if (size == 0) throw BadValue("must be a number of ranks, or -1 for the rest; got 0");
            field(spec) = size;
          },
          [=](const TrainSpec& spec) {
            return field(spec) ? std::to_string(*field(spec)) : std::string();
          },
          "a number of ranks, or -1"};
}

SpecValue MeshValue() {
  return {[](TrainSpec& spec, const GivenValue& given) {
            std::string text;
            for (const std::string& word : given.words) text += (text.empty() ? "" : ",") + word;
            if (text == "none" || text == "None" || text == "null") text.clear();
            const MeshRequest mesh = ParseMesh(text);
            if (mesh.data.ici) spec.parallel.mesh.data.ici = mesh.data.ici;
            if (mesh.fsdp.ici) spec.parallel.mesh.fsdp.ici = mesh.fsdp.ici;
            if (mesh.tensor.ici) spec.parallel.mesh.tensor.ici = mesh.tensor.ici;
            if (mesh.tensor_sequence.ici) {
              spec.parallel.mesh.tensor_sequence.ici = mesh.tensor_sequence.ici;
            }
          },
          [](const TrainSpec& spec) { return ShowMesh(spec.parallel.mesh); },
          "sizes of the axes data, fsdp, tensor and tensor_sequence, such as data=2,fsdp=1"};
}

}  // namespace

std::vector<SpecKey> ParallelKeys() {
  return {
    {{"parallel.mesh", "mesh"}, MeshValue(),
     "grid of ranks, in one value; the keys of single axes set the same", "data takes all ranks"},
    {{"parallel.data", "ici_data_parallelism"}, AxisSizeOf(FIELD(parallel.mesh.data.ici)),
     "ranks that share the rows of a step; -1: the rest", "the rest"},
    {{"parallel.fsdp", "ici_fsdp_parallelism"}, AxisSizeOf(FIELD(parallel.mesh.fsdp.ici)),
     "ranks that share the parameters and the rows of a step; -1: the rest", "1"},
    {{"parallel.tensor", "ici_tensor_parallelism"}, AxisSizeOf(FIELD(parallel.mesh.tensor.ici)),
     "ranks that share the heads of attention and the width of feed-forward layers; -1: the rest", "1"},
    {{"parallel.tensor_sequence", "ici_tensor_sequence_parallelism"},
     AxisSizeOf(FIELD(parallel.mesh.tensor_sequence.ici)),
     "`parallel.tensor` with ranks that also divide the rows between shared layers, which divides "
     "the memory of activations there; -1: the rest", "1"},
    {{"parallel.dcn_data", "dcn_data_parallelism"}, AxisSizeOf(FIELD(parallel.mesh.data.dcn)),
     "the same across hosts; both numbers are multiplied", "1"},
    {{"parallel.dcn_fsdp", "dcn_fsdp_parallelism"}, AxisSizeOf(FIELD(parallel.mesh.fsdp.dcn)),
     "the same for `parallel.fsdp`", "1"},
    {{"parallel.dcn_tensor", "dcn_tensor_parallelism"},
     AxisSizeOf(FIELD(parallel.mesh.tensor.dcn)), "the same for `parallel.tensor`", "1"},
    {{"parallel.dcn_tensor_sequence", "dcn_tensor_sequence_parallelism"},
     AxisSizeOf(FIELD(parallel.mesh.tensor_sequence.dcn)),
     "the same for `parallel.tensor_sequence`", "1"},
    {{"parallel.world_invariant", "world_invariant"},
     Integer(FIELD(parallel.world_invariant), 0, 1 << 16),
     "number of equal parts of a step's rows, a power of two, whose gradients are added in a fixed "
     "tree: 1, 2, 4 … ranks then give the same bits; 0: off"},
    {{"parallel.shard_optimizer_over_data", "shard_optimizer_over_data"},
     Bool(FIELD(parallel.shard_optimizer)),
     "each rank keeps and updates only its part of the moments (ZeRO-1), which changes no bit"},
    {{"parallel.elastic", "elastic"}, Bool(FIELD(parallel.elastic)),
     "resume a checkpoint of another number of ranks; an axis of -1 is computed again"},
    {{"parallel.overlap"}, Bool(FIELD(parallel.overlap)),
     "sum gradients over ranks during the backward pass, which changes no bit"},
    {{"parallel.bucket_bytes"}, Integer(FIELD(parallel.bucket_bytes), 1, 0x1p40),
     "least bytes of gradients that `parallel.overlap` sums at once"},
    {{"parallel.rank_timeout_s"}, Number(FIELD(parallel.rank_timeout_s), 0, 1e9),
     "seconds without an answer of another rank after which the run ends; 0: no limit"},
  };
}
// clang-format on

}  // namespace tandem::training
