#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "training/teacher/teacher_answer.h"

namespace tandem::training {

struct TeacherOptions {
  std::string url;    // base URL, with or without a final /v1
  std::string model;  // empty: the server's only one
  std::string key;    // sent as a bearer token; empty: none
  TeacherLimits limits;
  int max_attempts = 8;  // consecutive ones of a request
  std::chrono::milliseconds first_backoff{500};
};

// Client of the server of a teacher. One request at a time; one thread. Requests are repeated after
// faults that may pass (a refused or cut connection, 429, 5xx), with growing waits.
//
// Errors name the URL; the key never appears: kUnavailable after the last attempt, kCancelled after
// a stop request, kUnauthenticated, kPermissionDenied, kNotFound and kFailedPrecondition by the
// server's status, kDataLoss for an answer that is not one.
class TeacherClient {
 public:
  // Throws kInvalidArgument for a bad URL or key.
  TeacherClient(const TeacherOptions& options, std::stop_token stop);
  ~TeacherClient();
  TeacherClient(const TeacherClient&) = delete;
  TeacherClient& operator=(const TeacherClient&) = delete;

  // The name of the teacher on its server. Asks the server when the options have none.
  const std::string& model();
  TeacherAnswer Score(std::span<const TeacherPrompt> prompts);
  // The text of tokens; nullopt when the server cannot tell.
  std::optional<std::string> TextOf(std::span<const TokenId> tokens);

 private:
  class Exchange;
  std::unique_ptr<Exchange> exchange_;
  std::string model_;
  const TeacherLimits limits_;
};

}  // namespace tandem::training
