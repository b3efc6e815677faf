#include "bench/client/timed_receive.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>

#include "bench/client/http_target.h"

namespace tandem::bench {
namespace {

using namespace std::chrono_literals;

// Two ends of a TCP connection over the loopback interface; the second one notes arrivals.
class TimedReceiveTest : public testing::Test {
 protected:
  void SetUp() override {
    const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    ASSERT_EQ(bind(listener.fd(), at, size), 0);
    ASSERT_EQ(listen(listener.fd(), 1), 0);
    ASSERT_EQ(getsockname(listener.fd(), at, &size), 0);
    writer_ = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(writer_.fd(), at, size), 0);
    reader_ = Socket(accept(listener.fd(), nullptr, nullptr));
    ASSERT_TRUE(reader_);
    NoteArrivals(reader_.fd());
  }
  TimedReceive SendAndReceiveAfter(std::chrono::milliseconds pause) {
    EXPECT_EQ(send(writer_.fd(), "abc", 3, 0), 3);
    std::this_thread::sleep_for(pause);
    return ReceiveTimed(reader_.fd(), buffer_, sizeof buffer_);
  }

  Socket writer_;
  Socket reader_;
  char buffer_[16] = {};
};

TEST_F(TimedReceiveTest, TheAgeIsTheTimeInTheSocket) {
  TimedReceive received;
  // The kernel begins to note arrivals some time after it was asked to.
  for (int i = 0; i < 100 && received.age_s == 0; ++i) received = SendAndReceiveAfter(20ms);

  EXPECT_EQ(received.n_bytes, 3);
  EXPECT_EQ(std::string_view(buffer_, 3), "abc");
  EXPECT_GE(received.age_s, 0.020);
}

TEST_F(TimedReceiveTest, TheEndOfTheConnectionHasNoAge) {
  writer_.Close();

  const TimedReceive received = ReceiveTimed(reader_.fd(), buffer_, sizeof buffer_);

  EXPECT_EQ(received.n_bytes, 0);
  EXPECT_EQ(received.age_s, 0);
}

TEST_F(TimedReceiveTest, AFaultIsThatOfTheSocket) {
  EXPECT_EQ(ReceiveTimed(-1, buffer_, sizeof buffer_).n_bytes, -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace tandem::bench
