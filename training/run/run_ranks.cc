#include "training/run/run_ranks.h"

#include "engine/io/mapped_file.h"
#include "engine/io/sha256.h"
#include "engine/kernels/kernels.h"
#include "training/dist/agreement.h"
#include "training/spec/explain.h"

namespace tandem::training {
namespace {

std::string ShortHash(std::span<const std::byte> bytes) {
  return engine::ToHex(engine::Sha256Of(bytes)).substr(0, 16);
}

}  // namespace

void CheckSameStart(Collectives& ranks, const TrainSpec& spec) {
  const auto program = engine::MappedFile::Open("/proc/self/exe");
  TrainSpec shared = spec;
  shared.resources.threads = 0;  // hosts may have different numbers of cores
  const std::string text = ShowSpec(shared);
  CheckAgreement(
      ranks,
      {{"the program", ShortHash(program->bytes()), "start the same file on all hosts"},
       {"the instruction set", std::string(engine::Kernels().key),
        "arithmetic differs between them: use equal hosts, or set TANDEM_FORCE_ISA to the lesser "
        "one"},
       {"the spec", ShortHash(std::as_bytes(std::span(text))), "give all ranks the same spec"}});
}

}  // namespace tandem::training
