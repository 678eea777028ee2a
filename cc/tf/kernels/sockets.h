// TCP sockets of the system, for `MessageHub`.
#ifndef TWML_TF_KERNELS_SOCKETS_H_
#define TWML_TF_KERNELS_SOCKETS_H_

#include <netdb.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace twml {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of a host: its IPv4 addresses if there are any. Null if the host has no address.
Addresses Resolve(std::string host, int64_t port);

// A socket that listens on a free port of a host, see `MessageHub::Listen`; -1 and errno if there
// is none.
int ListenOn(const std::string& host);

// The port of a socket that listens; 0 if the system does not say.
int64_t PortOf(int listener);

// Small messages are sent at once, and a peer whose network is cut is noticed.
void SetOptions(int descriptor);

// The limit for a call that reads or writes; 0 for none.
void SetTimeout(int descriptor, double seconds);

// Whether all buffers were read.
bool ReadAll(int descriptor, std::vector<iovec> buffers);

// Whether all buffers were written.
bool WriteAll(int descriptor, std::vector<iovec> buffers);

}  // namespace twml

#endif  // TWML_TF_KERNELS_SOCKETS_H_
