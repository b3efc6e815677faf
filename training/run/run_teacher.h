#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "training/setup/run_parts.h"
#include "training/setup/validation_set.h"

namespace tandem::training {

// The teacher's figures of a distillation (training/teacher). A served teacher scores every sample
// once, before the first step; the figures are kept in the run's directory. A pass that was
// interrupted continues with the samples that are left.
struct TeacherJob {
  RunParts& parts;
  ValidationSet* validation = nullptr;  // null: none
  std::filesystem::path dir;            // of the run
  bool resumes = false;                 // trained weights will be restored later
  std::stop_token stop;
  std::function<void(const std::string&)> report;
  std::function<void(const std::string&)> warn;
};

// Reads or asks for the figures, and stores them in parts.teacher and in the batches of
// `validation`. All ranks call it: the first one asks, reads and writes, and the others get its
// figures. Leaves parts.teacher empty on a stop request to any rank. Throws kInvalidArgument when
// the resumed run began with another teacher, or the teacher has another tokenizer than the
// student, and as TeacherClient.
void PrepareTeacher(const TeacherJob& job);

}  // namespace tandem::training
