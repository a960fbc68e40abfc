/*
 * A peer for tests of connection management: connects, accepts and rejects with private data, by librdmacm.
 *
 *   cm_peer serve ADDRESS PORT COUNT   accepts COUNT requests with the complement of their private data;
 *                                      rejects those that begin with 'R', with the same
 *   cm_peer ask ADDRESS PORT LETTER    connects with 56 bytes from LETTER on, and prints what comes:
 *                                      "EVENT STATUS DATA", data in hex
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DATA = 56, TIMEOUT_MS = 5000 };

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return rdma_create_qp(id, NULL, &attr);
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	return rdma_get_cm_event(channel, &event) ? NULL : event;
}

static int answer(struct rdma_cm_event *event)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	const unsigned char *asked = event->param.conn.private_data;
	unsigned char data[DATA];

	for (int i = 0; i < DATA; i++)
		data[i] = ~asked[i];
	if (asked[0] == 'R')
		return rdma_reject(event->id, data, DATA);
	param.private_data = data;
	param.private_data_len = DATA;
	return make_qp(event->id) ? -1 : rdma_accept(event->id, &param);
}

static int serve(struct rdma_event_channel *channel, struct rdma_cm_id *id, struct sockaddr *to, int count)
{
	struct rdma_cm_event *event;

	if (rdma_bind_addr(id, to) || rdma_listen(id, 0))
		return fail("listen");
	while (count > 0 && (event = next(channel))) {
		int rejects = 0;

		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			rejects = ((const char *)event->param.conn.private_data)[0] == 'R';
			if (answer(event))
				return fail("answer");
		}
		if (event->event == RDMA_CM_EVENT_DISCONNECTED)
			rdma_disconnect(event->id);
		if (rejects || event->event == RDMA_CM_EVENT_DISCONNECTED)
			count--;
		rdma_ack_cm_event(event);
	}
	return 0;
}

static int ask(struct rdma_event_channel *channel, struct rdma_cm_id *id, struct sockaddr *to, int letter)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct rdma_cm_event *event;
	unsigned char data[DATA];

	for (int i = 0; i < DATA; i++)
		data[i] = letter + i;
	param.private_data = data;
	param.private_data_len = DATA;
	if (rdma_resolve_addr(id, NULL, to, TIMEOUT_MS) || !(event = next(channel)))
		return fail("rdma_resolve_addr");
	rdma_ack_cm_event(event);
	if (rdma_resolve_route(id, TIMEOUT_MS) || !(event = next(channel)))
		return fail("rdma_resolve_route");
	rdma_ack_cm_event(event);
	if (make_qp(id) || rdma_connect(id, &param) || !(event = next(channel)))
		return fail("rdma_connect");
	printf("%s %d ", rdma_event_str(event->event), event->status);
	for (int i = 0; i < event->param.conn.private_data_len && i < DATA; i++)
		printf("%02x", ((const unsigned char *)event->param.conn.private_data)[i]);
	printf("\n");
	return 0;
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found;
	struct rdma_cm_id *id;

	if (argc != 5) {
		fprintf(stderr, "usage: cm_peer serve|ask ADDRESS PORT COUNT|LETTER\n");
		return 2;
	}
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		return fail("rdma_create_id");
	if (getaddrinfo(argv[2], argv[3], &hints, &found))
		return fail("getaddrinfo");
	if (!strcmp(argv[1], "serve"))
		return serve(channel, id, found->ai_addr, atoi(argv[4]));
	return ask(channel, id, found->ai_addr, argv[4][0]);
}
