// Preloaded library in which name resolution takes longer than any caller waits, as if no name server
// responded.

#define _GNU_SOURCE
#include <netdb.h>
#include <unistd.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **result) {
    (void)node, (void)service, (void)hints, (void)result;
    sleep(60);
    return EAI_AGAIN;
}
