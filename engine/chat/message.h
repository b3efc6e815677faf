#pragma once

#include <nlohmann/json_fwd.hpp>

namespace tandem::engine {

struct NormalizeOptions {
  bool developer_as_system = true;  // for templates that do not mention the role "developer"
};

// Brings a client's messages into the form that Hugging Face's templates expect; they stay JSON:
//  - content given as text (or refusal) parts becomes one string, the parts joined with "\n";
//  - null or absent content becomes "": templates search and print it without asking;
//  - tool call arguments that are the text of a JSON object become that object.
// Everything else is kept as it is: the server has already checked roles and types. Throws
// kInvalidArgument with param "messages[i].content" for parts that are not text, and
// "messages[i]" for messages that are not objects.
nlohmann::ordered_json NormalizeMessages(const nlohmann::ordered_json& messages,
                                         const NormalizeOptions& options = {});

}  // namespace tandem::engine
