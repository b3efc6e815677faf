#include "server/http/response_channel.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace tandem::server {
namespace {

// Output must not overtake a pause that is being reported to its producer.
TEST(ResponseChannel, AProducerHearsOfPausesInTheirOrder) {
  const auto channel = std::make_shared<ResponseChannel>(
      10, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
  channel->BeginStream({});
  std::vector<bool> heard;
  channel->OnBackpressure([&](bool is_paused) {
    if (is_paused) channel->Sent(20);
    heard.push_back(is_paused);
  });

  channel->Append(std::string(20, 'x'));

  EXPECT_EQ(heard, (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace tandem::server
