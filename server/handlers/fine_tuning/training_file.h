#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "server/files/file_store.h"
#include "server/fine_tuning/fine_tuning_spec.h"
#include "server/handlers/handlers.h"
#include "server/wire/fine_tuning_request.h"

// Parts that the endpoints of fine-tuning share: the base model and the training file of a request.
namespace tandem::server {

// Reads the body of a job. Throws kNotFound for an unknown model before any other fault.
FineTuningRequest ParseJobRequest(const HandlerContext& context, const Request& request);

// The model to train, and its files. Throws kNotFound (model_not_found).
TrainingBase TrainingBaseOf(const HandlerContext& context, const Request& request,
                            const std::string& model_name);

// Throws kNotFound (file_not_found) for a missing file and for another key's, and kInvalidArgument
// for another purpose. `param` names the field of the request.
StoredFile FindTrainingFile(FileStore& files, const std::string& id, const char* param,
                            const std::optional<int64_t>& viewer);

// kInvalidArgument (invalid_training_file).
Error InvalidTrainingFile(const std::string& param, const std::string& message);

// Whether a check's result is no longer wanted: the client is gone, or the server stops.
bool IsOver(const HandlerContext& context, const ResponseWriter& writer);
void ThrowIfOver(const HandlerContext& context, const ResponseWriter& writer);

struct FileLines {
  int64_t count = 0;    // lines with text
  int64_t longest = 0;  // bytes
};
FileLines CountLines(const HandlerContext& context, const std::filesystem::path& path,
                     const ResponseWriter& writer);

// Text that the check of a file may render and tokenise. Each answer of a chat repeats all messages
// before it, so a small file of long chats can need more. The job then checks the file.
inline constexpr int64_t kMostCheckedText = int64_t{4} << 30;
inline constexpr int64_t kFewestExamples = 10;

// The spec of a job with one sample: its data section decides what a check finds.
training::TrainSpec CheckSpecOf(const FineTuningRequest& request, const TrainingBase& base,
                                const TrainingFiles& files);

// Checks every row of a file with the code that a run uses. Absent if that takes more than
// kMostCheckedText.
std::optional<TrainingData> ExamineFile(const HandlerContext& context,
                                        const FineTuningRequest& request, const TrainingBase& base,
                                        const TrainingFiles& files, const ResponseWriter& writer);

}  // namespace tandem::server
