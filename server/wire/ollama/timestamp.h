#pragma once

#include <chrono>
#include <string>

namespace tandem::server {

// The time in UTC as Ollama's API writes it: "2026-11-23T17:05:09.123456Z".
std::string OllamaTime(std::chrono::system_clock::time_point time);

}  // namespace tandem::server
