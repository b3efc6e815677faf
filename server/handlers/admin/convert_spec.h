#pragma once

#include <nlohmann/json_fwd.hpp>

#include "convert/spec/spec.h"
#include "server/handlers/handlers.h"

namespace tandem::server {

// The conversion spec for the body of POST /admin/convert, which is also the spec of a convert job.
// Checks everything that needs no weights. Throws kNotFound (model_not_found, path_not_found),
// kAlreadyExists and kInvalidArgument, naming the field.
convert::ConvertSpec ConvertSpecOf(const HandlerContext& context,
                                   const nlohmann::ordered_json& body);

}  // namespace tandem::server
