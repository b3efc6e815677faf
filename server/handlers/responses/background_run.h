#pragma once

#include <memory>

#include "server/handlers/handlers.h"
#include "server/handlers/responses/responses_request.h"
#include "server/responses/background_response.h"
#include "server/responses/response_store.h"

namespace tandem::server {

// The record of a response, without its body.
StoredResponse RecordOf(const Request& request, const PreparedResponse& prepared);

// Returns whether the store has the record; logs the reason if it has not.
bool PutOrLog(ResponseStore& store, const StoredResponse& record);

// Starts a response that runs without its client. It is on disk before it starts, so that a killed
// server finds it again. `writer` gets the headers of a refusal. Throws kUnavailable
// (insufficient_storage) for a full disk, and passes on the errors of Generate. Then nothing stays.
std::shared_ptr<BackgroundResponse> RunInBackground(const HandlerContext& context,
                                                    const Request& request,
                                                    PreparedResponse prepared,
                                                    const ResponseWriter& writer);

}  // namespace tandem::server
