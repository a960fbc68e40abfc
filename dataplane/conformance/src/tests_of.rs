//! The suite as tests of a crate that brings kinds of ports.

/// Makes a test of each law of the suite, for the ports of a [`Suite`](crate::Suite).
#[macro_export]
macro_rules! conformance_tests {
    ($suite:expr) => {
        $crate::conformance_tests! { $suite;
            laws::datagrams_of_every_size_arrive_as_they_were_sent,
            laws::what_is_sent_first_arrives_in_order_be_the_neighbour_known_or_not,
            laws::bursts_arrive_once_and_in_order_in_both_directions,
            laws::a_mark_of_congestion_and_a_traffic_class_arrive,
            laws::its_descriptor_says_when_something_has_come_and_nothing_before,
            laws::what_a_node_sends_to_itself_comes_back_and_wakes_it,
            laws::a_slot_that_is_not_committed_is_given_out_again,
            laws::a_port_that_is_full_has_room_again_once_it_was_flushed,
            laws::super_packets_of_sockets_are_taken_apart_wherever_they_are_made,
            refusals::a_datagram_that_is_too_long_is_told_of_and_others_go_on,
            refusals::a_peer_who_is_not_there_is_counted_and_others_do_not_wait,
            refusals::a_peer_whose_host_has_no_node_is_told_of_with_what_was_sent,
            refusals::paths_that_do_not_begin_here_lead_nowhere,
            refusals::a_link_that_goes_down_and_comes_up_carries_on,
            refusals::an_address_is_that_of_one_node,
            interfaces::an_interface_that_has_another_address_of_the_link_is_followed,
            interfaces::an_interface_that_carries_less_is_told_of_and_carries_more_again,
            interfaces::what_the_other_end_does_not_take_holds_nothing_up,
            interfaces::an_interface_that_is_gone_is_told_of_by_its_name,
            arrivals::frames_for_others_and_frames_that_are_not_whole_move_nothing,
            arrivals::other_programs_of_the_host_go_on_beside_it,
        }
    };
    ($suite:expr; $($module:ident::$law:ident,)*) => {
        $(
            #[test]
            #[ignore = "needs root and network namespaces"]
            fn $law() {
                $crate::$module::$law(&$suite);
            }
        )*
    };
}
